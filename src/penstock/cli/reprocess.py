"""`penstock run --reprocess`: reprocess everything beside what runs, compare, switch readers, retire the old
version."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.comparisons import print_comparisons
from penstock.cli.output import say
from penstock.cli.programs import run_file, stop_session
from penstock.spark.pipeline import Pipeline, defined_pipelines
from penstock.spark.run.settings import RunSettings
from penstock.spark.versions import reprocessing
from penstock.spark.versions.comparing import Comparison
from penstock.spark.versions.register import Register
from penstock.spark.versions.reprocessing import VersionRun, caught_up, compare_versions
from penstock.spark.versions.retiring import retire

_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ReprocessOptions:
    """What to do once the new version has caught up."""

    switch: str
    """ask, always, if-same or never"""
    retire: bool
    delete_topics: bool
    once: bool
    """Whether to end then; else the new version keeps running."""


def reprocess_file(file: Path, arguments: list[str], settings: RunSettings, options: ReprocessOptions) -> None:
    """Run the program as the next version of each of its pipelines, and then do what was asked."""
    of_others = defined_pipelines()
    watch = Watch()
    try:
        with watch.shown():
            run_file(file, arguments, dataclasses.replace(settings, on_start=watch.begin), close=False)
        if unfinished := [each for each in watch.begun if not each.finished]:
            _say_interrupted(file, unfinished)
            raise typer.Exit(1)
        for each in watch.begun:
            _finish(each, options)
    finally:
        for pipeline in defined_pipelines(besides=of_others):
            pipeline.close()
        stop_session()
    if not options.once:
        _go_on(file, arguments, settings, watch.begun)


class Watch:
    """Records each pipeline as it starts, and shows their progress."""

    def __init__(self) -> None:
        self.begun: list[VersionRun] = []
        self._ended = threading.Event()

    def begin(self, pipeline: Pipeline) -> None:
        """Called by a pipeline that is about to start."""
        begun = reprocessing.begin(pipeline)
        how = "resumes" if begun.resumed else "starts"
        say(f"Pipeline {pipeline.name} {how} version {begun.version}, beside {begun.before}.")
        for place in begun.elsewhere:
            say(f"It also writes {place} for version {begun.version}, which is not compared.")
        self.begun.append(begun)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A progress bar on standard error while the pipelines run."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        bars = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        drawing = threading.Thread(target=self._draw, args=(bars,), name="penstock-progress", daemon=True)
        with bars:
            drawing.start()
            try:
                yield
            finally:
                self._ended.set()
                drawing.join(10 * _LOOK_S)

    def _draw(self, bars: Any) -> None:
        tasks: dict[str, Any] = {}
        while True:
            ended = self._ended.wait(_LOOK_S)
            for each in list(self.begun):
                name, total = each.pipeline.name, each.catching_up.total
                if name not in tasks:
                    tasks[name] = bars.add_task(f"{name} {each.version}", total=total, rate="")
                done = total if each.finished else each.catching_up.done
                rows_per_s = sum(query.rows_per_s for query in each.pipeline.progress().values())
                bars.update(tasks[name], completed=done, rate=f"{rows_per_s:,.0f}/s")
            if ended:
                return


def _say_interrupted(file: Path, unfinished: Sequence[VersionRun]) -> None:
    for each in unfinished:
        done, total = each.catching_up.done, each.catching_up.total
        say(
            f"Pipeline {each.pipeline.name} was stopped before version {each.version} had caught up: "
            f"at {done:,} of {total:,}."
        )
    say(f"Resume it with: penstock run {file.name} --reprocess {unfinished[0].version}")


def _finish(begun: VersionRun, options: ReprocessOptions) -> None:
    pipeline, connection = begun.pipeline, begun.pipeline.connection
    caught_up(begun)
    say(f"Pipeline {pipeline.name} has caught up: version {begun.version} has read all earlier records.")
    register = Register(connection)
    old, new = register.find(pipeline.name, begun.before), register.find(pipeline.name, begun.version)
    comparisons = compare_versions(pipeline.spark, pipeline.url, old, new, client=pipeline.client)
    print_comparisons(old.version, new.version, comparisons)
    if not should_switch(options.switch, pipeline.name, begun.version, comparisons):
        say(
            f"Readers stay with version {begun.before}. Switch them with: penstock pipelines switch {pipeline.name} "
            f"{begun.version} --url {pipeline.url}"
        )
        return
    for name, topic in register.switch(pipeline.name, begun.version, expected=begun.before).items():
        say(f"Readers of {name} get topic {topic} from now on.")
    if options.retire:
        retired = retire(
            connection,
            register.find(pipeline.name, begun.before),
            delete_topics=options.delete_topics,
            spark=pipeline.spark,
            on_wait=say_waiting,
        )
        say_retired(begun.before, retired)


def say_waiting(places: str) -> None:
    say(f"Waiting until it has ended: {places}.")


def say_retired(version: str, retired: Any) -> None:
    for place in retired.stopped:
        say(f"Stopped version {version}, which ran in {place}.")
    say(f"Retired version {version}: removed {retired.removed}.")
    for topic in retired.deleted:
        say(f"Deleted topic {topic}.")


def should_switch(switch: str, pipeline: str, version: str, comparisons: Mapping[str, Comparison]) -> bool:
    """Whether to switch readers: as the option says, or by asking."""
    if switch == "ask":
        if not sys.stdin.isatty():
            return False
        return typer.confirm(f"Switch the readers of {pipeline} to version {version}?", err=True)
    return switch == "always" or (switch == "if-same" and all(each.is_same for each in comparisons.values()))


def _go_on(file: Path, arguments: list[str], settings: RunSettings, begun: Sequence[VersionRun]) -> None:
    """Become `penstock run` of the new version, which continues from its checkpoints until it is stopped."""
    versions = {each.version for each in begun}
    if len(versions) > 1:
        say(f"The pipelines of {file.name} are at different versions now: run each one separately.")
        return
    (version,) = versions
    say(f"Version {version} keeps running.")
    command = [sys.executable, "-m", "penstock.cli", "run", str(file), "--version", version, *_again(settings)]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*command, "--", *arguments] if arguments else command)


def _again(settings: RunSettings) -> Iterator[str]:
    if settings.master is not None:
        yield from ("--master", settings.master)
    if settings.engine is not None:
        yield from ("--engine", settings.engine)
    for name, value in settings.conf.items():
        yield from ("--conf", f"{name}={value}")
