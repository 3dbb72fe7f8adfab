"""`penstock run`: run the pipelines of a program, here or on a cluster, on and on, once, or all over again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from penstock.cli.output import say
from penstock.cli.stream import examples, pairs, position

if TYPE_CHECKING:
    from penstock.spark.run_settings import RunSettings

EXAMPLES: Final = examples(
    "penstock run usage.py",
    "penstock run usage.py --once",
    "penstock run usage.py --master spark://10.0.0.7:7077 --archive environment.tar.gz",
    "penstock run usage.py --from 2026-11-15T08:00 -- --customers 10",
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
    """Understands `--reprocess v2` and `--reprocess=v2` as `--reprocess --version v2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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
    """Whether the word behind --reprocess is its version, and not the next option, or the program."""
    return not word.startswith("-") and not word.endswith(".py") and "/" not in word


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The program that defines the pipelines.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS...", help="What the program gets as its arguments.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Where Spark runs: local[N], local[*], spark://HOST:PORT, yarn, k8s://..."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Process what is there now, then end.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where queries without a checkpoint begin: earliest, latest, a time (2026-11-15T08:00), or an age "
            "(-15m).",
        ),
    ] = None,
    engine: Annotated[
        EngineChoice | None,
        typer.Option(help="How streams are read: by Spark's Kafka connector, by Penstock, or the faster one."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of Spark by its own name; may be repeated."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A packed environment (venv-pack, conda-pack) for executors to run in."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Run as this version; else the one that readers get.")
    ] = None,
    reprocess: Annotated[
        bool,
        typer.Option(
            "--reprocess",
            help="Process everything again, as the next version or as the one named behind it, into topics of its "
            "own; compare the results, and switch readers. One that was interrupted goes on.",
        ),
    ] = False,
    switch: Annotated[
        Switch,
        typer.Option(help="With --reprocess: whether readers are led to the new results. Without a terminal, ask: no."),
    ] = Switch.ask,
    retire: Annotated[
        bool, typer.Option("--retire", help="With --reprocess: when switched, stop the old version, remove its state.")
    ] = False,
    delete_topics: Annotated[
        bool, typer.Option("--delete-topics", help="With --retire: delete the topics of the old version, too.")
    ] = False,
) -> None:
    """Run the pipelines of a program.

    The program is run as Python would run it; its `run()` obeys the options here. When it only defines pipelines, all
    of them are run together. SIGTERM and Ctrl-C let the batches that are on their way leave, then end.
    """
    _check(reprocess=reprocess, switch=switch, retire=retire, delete_topics=delete_topics, start=start)
    file = file.expanduser().absolute()
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE.py")
    settings = _settings(file, master, once or reprocess, start, engine, conf, archive, version, reprocess)
    if metrics is not None:
        from penstock.observe.serving import serve

        serve(metrics)  # until the process ends
    if not reprocess:
        run_file(file, arguments or [], settings)
        return
    from penstock.cli.reprocess import Wishes, reprocess_file

    reprocess_file(file, arguments or [], settings, Wishes(switch.value, retire, delete_topics, once))


def _check(*, reprocess: bool, switch: Switch, retire: bool, delete_topics: bool, start: str | None) -> None:
    """Options that mean nothing without another are refused."""
    for given, option in ((switch is not Switch.ask, "--switch"), (retire, "--retire")):
        if given and not reprocess:
            raise typer.BadParameter("it is for --reprocess", param_hint=option)
    if delete_topics and not retire:
        raise typer.BadParameter("it is for --retire", param_hint="--delete-topics")
    if reprocess and start is not None:
        raise typer.BadParameter("everything is processed again from the earliest records on", param_hint="--from")


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
    from penstock.cli.masters import check_master
    from penstock.spark.run_settings import RunSettings

    settings = pairs(conf, "--conf")
    for name in settings:
        if not name.startswith("spark."):
            raise typer.BadParameter(f"{name!r} is no setting of Spark: they begin with spark.", param_hint="--conf")
    chosen = settings.get("spark.master", master)
    if chosen is not None:
        check_master(chosen)
    if archive is not None:
        from penstock.spark.packaging import archive_settings, put_our_python_first

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
    """Where to begin, as pipelines take it. An age is meant from now on, wherever a query starts later."""
    from penstock.model import PositionKind
    from penstock.spark.source.positions import position_text

    if text is None:
        return None
    where = position(text, "--from")
    if where.kind is PositionKind.POINTER:
        raise typer.BadParameter(
            f"{text!r} is a pointer, which each partition has its own of: name a time, earliest or latest",
            param_hint="--from",
        )
    return position_text(where)


def run_file(file: Path, arguments: list[str], settings: RunSettings, *, close: bool = True) -> None:
    """Run the program, and then those of its pipelines that it has not run itself. `close` lets go of them."""
    from penstock.cli.programs import run_program
    from penstock.spark.pipeline import defined_pipelines, started_pipelines
    from penstock.spark.run_settings import running_with

    started_before = len(started_pipelines())
    with running_with(settings):
        try:
            run_program(file, arguments)
            _run_rest(file, has_run=len(started_pipelines()) > started_before)
        finally:
            if close:
                for pipeline in defined_pipelines():
                    pipeline.close()
                stop_session()


def stop_session() -> None:
    """End the Spark session of this process, if it has one."""
    from penstock.spark.sessions import active_session

    if (spark := active_session()) is not None:
        spark.stop()


def _run_rest(file: Path, *, has_run: bool) -> None:
    """Run what the program has defined and not run; nothing when it `has_run` some, perhaps thrown away since."""
    from penstock.errors import ConfigError
    from penstock.spark.pipeline import defined_pipelines, run_together

    pipelines = defined_pipelines()
    if not pipelines and not has_run:
        raise ConfigError(
            f"{file.name} defines no pipeline: make one with penstock.spark.Pipeline, and keep it in a variable"
        )
    waiting = [pipeline for pipeline in pipelines if not pipeline.started]
    if waiting and has_run:
        names = ", ".join(pipeline.name for pipeline in waiting)
        say(f"{file.name} has run some of its pipelines itself; these it has not, and they stay so: {names}")
    elif waiting:
        run_together(waiting)
