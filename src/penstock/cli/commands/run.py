"""`penstock run`: run the apps or pipelines of a program, here or on a cluster, continuously, once, or again."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from penstock.cli.app_programs import run_app_file
from penstock.cli.commands.up import supervise_programs
from penstock.cli.logs import show_log_of
from penstock.cli.options import examples, spark_settings
from penstock.cli.stream import position
from penstock.errors import PipelineError
from penstock.model import PositionKind
from penstock.observe.lineage import report_lineage
from penstock.observe.metrics.serving import serve
from penstock.observe.programs import LOGS
from penstock.supervising.finding import Program, uses_spark
from penstock.supervising.reporting import reporting

if TYPE_CHECKING:
    from penstock.spark.run.settings import RunSettings


_LOCAL: Final = re.compile(r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?")
_KUBERNETES: Final = re.compile(r"k8s://\S+")
_NO_ARCHIVE: Final = "--no-class-archive"
_GIVEN: Final = "penstock.run.given"
"""Where the context keeps the arguments as they were given."""


def check_master(master: str) -> None:
    """Raise BadParameter for an invalid master, and PipelineError when it does not answer."""
    if _LOCAL.fullmatch(master) or _KUBERNETES.fullmatch(master):
        return
    if master == "yarn":
        if not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
            raise PipelineError(
                "for --master yarn, HADOOP_CONF_DIR or YARN_CONF_DIR must name the folder with the configuration of "
                "the cluster (yarn-site.xml)"
            )
        return
    from penstock.spark.sessions.masters import check_answers, standalone_hosts

    if not standalone_hosts(master):
        raise typer.BadParameter(
            f"{master!r} is not a Spark master: write local[N], local[*], spark://HOST:PORT, yarn or k8s://...",
            param_hint="--master",
        )
    check_answers(master)


app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock run usage.py",
    "penstock run usage.py --once",
    "penstock run usage.py --master spark://10.0.0.7:7077 --archive environment.tar.gz",
    "penstock run usage.py --master spark://10.0.0.7:7077 --checkpoints s3a://bucket/pipelines",
    "penstock run usage.py --from 2026-11-15T08:00 -- --customers 10",
    "penstock run app.py --supervise --health 127.0.0.1:9470",
    "penstock run usage.py --reprocess --switch if-same",
    "penstock run usage.py --reprocess v3 --once --switch always --retire",
)


class EngineChoice(StrEnum):
    auto = "auto"
    native = "native"
    python = "python"


class Switch(StrEnum):
    ask = "ask"
    always = "always"
    if_same = "if-same"
    never = "never"


class RunCommand(TyperCommand):
    """Keeps what was given, and understands `--reprocess v2` and `--reprocess=v2` as `--reprocess --version v2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = tuple(args)
        end = args.index("--") if "--" in args else len(args)
        ours = args[:end]
        for place, word in enumerate(ours):
            if word.startswith("--reprocess="):
                ours[place : place + 1] = ["--reprocess", "--version", word.partition("=")[2]]
            elif word == "--reprocess" and place + 1 < len(ours) and _is_version(ours[place + 1]):
                ours.insert(place + 1, "--version")
            else:
                continue
            break
        return super().parse_args(ctx, [*ours, *args[end:]])


def _is_version(word: str) -> bool:
    """Whether the word after --reprocess is its version, and not the next option, or the program."""
    return not word.startswith("-") and not word.endswith(".py") and "/" not in word


@app.command("run", cls=RunCommand, epilog=EXAMPLES)
def run(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The program that defines pipelines or apps.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS...", help="The arguments of the program.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Where Spark runs: local[N], local[*], spark://HOST:PORT, yarn, k8s://..."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Process the existing records, then end.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where queries without a checkpoint start: earliest, latest, a time (2026-11-15T08:00), or an age "
            "(-15m).",
        ),
    ] = None,
    engine: Annotated[
        EngineChoice | None,
        typer.Option(help="What reads streams: Spark's Kafka connector, Penstock, or the faster of the two."),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the pipelines keep their checkpoints: on several hosts, a folder that all of them reach, such "
            "as s3a://BUCKET/FOLDER. Default: what the program says, else a folder beside the log, else ./pipelines.",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A Spark setting; may be repeated."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A packed environment (venv-pack, conda-pack) for executors to run in."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a --metrics that other machines can reach: there is no login.")
    ] = False,
    lineage: Annotated[
        bool,
        typer.Option("--lineage", help="Report handlers and queries, and what they read and write, to OpenLineage."),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress of the queries, only warnings and errors.")
    ] = False,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Run as this version. Default: the one that readers get.")
    ] = None,
    reprocess: Annotated[
        bool,
        typer.Option(
            "--reprocess",
            help="Process everything again, as the next version or as the one given, into its own topics; compare the "
            "results, and switch readers. An interrupted one is resumed.",
        ),
    ] = False,
    switch: Annotated[
        Switch,
        typer.Option(help="With --reprocess: whether readers get the new results. Without a terminal, ask: no."),
    ] = Switch.ask,
    retire: Annotated[
        bool, typer.Option("--retire", help="With --reprocess: then stop the old version and remove its state.")
    ] = False,
    delete_topics: Annotated[
        bool, typer.Option("--delete-topics", help="With --retire: also delete the topics of the old version.")
    ] = False,
    supervise: Annotated[
        bool,
        typer.Option("--supervise", help="Start the program again when it dies, as `penstock up` does for several."),
    ] = False,
    health: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --supervise: serve /healthz, /readyz and /programs there."),
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --supervise: the folder of the log. Default: ./logs.")
    ] = None,
    no_class_archive: Annotated[
        bool, typer.Option(_NO_ARCHIVE, help="With --supervise: do not run `penstock spark archive`.")
    ] = False,
) -> None:
    """Run the pipelines or apps of a program.

    The program is run as Python would run it; its `run()` obeys the options here. If it only defines pipelines, or
    apps, all of them are run together. SIGTERM and Ctrl-C finish the current batches and records, then end. An app
    takes none of the options about Spark.
    """
    supervised = (("--health", health is not None), ("--logs", logs is not None), (_NO_ARCHIVE, no_class_archive))
    for option, needs_supervision in supervised:
        if needs_supervision and not supervise:
            raise typer.BadParameter("it needs --supervise", param_hint=option)
    _check(reprocess=reprocess, switch=switch, retire=retire, delete_topics=delete_topics, start=start)
    file = file.expanduser().absolute()
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE.py")
    if supervise:
        supervise_programs(
            [Program(file.stem, file, _without_supervision(ctx.meta[_GIVEN]))],
            logs=logs if logs is not None else LOGS,
            health=health,
            insecure=insecure,
            class_archive=not no_class_archive,
        )
        return
    with reporting():
        show_log_of("penstock", quiet=quiet)
        if metrics is not None:
            serve(metrics, insecure=insecure)  # until the process ends
        if lineage:
            report_lineage()
        about_spark = (master, start, engine, checkpoints, conf, archive, version)
        if not (once or reprocess or any(each is not None for each in about_spark) or uses_spark(file)):
            run_app_file(file, arguments or [])
            return
        settings = _settings(file, master, once or reprocess, start, engine, conf, archive, version, reprocess)
        # A reprocessing run has its own progress bar.
        settings = dataclasses.replace(settings, quiet=quiet or reprocess, checkpoints=checkpoints)
        if not reprocess:
            from penstock.cli.programs import run_file

            run_file(file, arguments or [], settings)
            return
        from penstock.cli.reprocess import ReprocessOptions, reprocess_file

        reprocess_file(file, arguments or [], settings, ReprocessOptions(switch.value, retire, delete_topics, once))


def _without_supervision(given: Sequence[str]) -> tuple[str, ...]:
    """The arguments for the supervised process: those that were given, without what the supervisor obeys."""
    end = given.index("--") if "--" in given else len(given)
    kept: list[str] = []
    words = iter(given[:end])
    for word in words:
        if word in ("--health", "--logs"):
            next(words, None)
        elif word not in ("--supervise", _NO_ARCHIVE) and not word.startswith(("--health=", "--logs=")):
            kept.append(word)
    return (*kept, *given[end:])


def _check(*, reprocess: bool, switch: Switch, retire: bool, delete_topics: bool, start: str | None) -> None:
    """Refuse options that have no effect without another."""
    for given, option in ((switch is not Switch.ask, "--switch"), (retire, "--retire")):
        if given and not reprocess:
            raise typer.BadParameter("it needs --reprocess", param_hint=option)
    if delete_topics and not retire:
        raise typer.BadParameter("it needs --retire", param_hint="--delete-topics")
    if reprocess and start is not None:
        raise typer.BadParameter("reprocessing starts at the earliest records", param_hint="--from")


def _settings(
    file: Path,
    master: str | None,
    once: bool,
    start: str | None,
    engine: EngineChoice | None,
    conf: list[str] | None,
    archive: str | None,
    version: str | None,
    reprocess: bool,
) -> RunSettings:
    from penstock.spark.run.settings import RunSettings

    settings = spark_settings(conf)
    chosen = settings.get("spark.master", master)
    if chosen is not None:
        check_master(chosen)
    if archive is not None:
        from penstock.spark.sessions.packaging import archive_settings, put_our_python_first

        settings = {**archive_settings(archive, chosen), **settings}
        put_our_python_first()
    return RunSettings(
        master=master,
        once=once,
        start="earliest" if reprocess else _start(start),
        engine=None if engine is None else engine.value,
        conf=settings,
        version=version,
        reprocess=reprocess,
        program=str(file),
    )


def _start(text: str | None) -> str | None:
    """The start position for pipelines. An age counts from now, even if a query starts later."""
    from penstock.spark.source.positions import position_text

    if text is None:
        return None
    where = position(text, "--from")
    if where.kind is PositionKind.POINTER:
        raise typer.BadParameter(
            f"{text!r} is an offset, which differs by partition: give a time, earliest or latest",
            param_hint="--from",
        )
    return position_text(where)
