"""Settings of a run that `penstock run` chooses, as opposed to those in the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline

Engine = Literal["auto", "native", "python"]
ENGINES: Final = ("auto", "native", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How to run the pipelines of a program. None leaves the choice to the program."""

    master: str | None = None
    """local[2], spark://host:7077, yarn, k8s://...; the default is all cores of this machine."""
    once: bool = False
    """Process the available input, then end."""
    start: str | None = None
    """Where queries without a checkpoint begin: earliest, latest, or a time."""
    engine: Engine | None = None
    checkpoints: str | None = None
    """The folder of the checkpoints of all pipelines; on several hosts, one that all of them reach."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings; they override all others."""
    version: str | None = None
    """Run as this version of the pipeline, with its own checkpoints and output topics. The default is the current
    version."""
    reprocess: bool = False
    """Run as a version that has not caught up yet: `version`, else the one in progress, else a new one."""
    on_start: Callable[[Pipeline], None] | None = None
    """Called with each pipeline before its queries start; an exception prevents the start."""
    quiet: bool = False
    """Do not show progress."""
    program: str | None = None
    """The file that `penstock run` runs; it is sent to the executors."""


_current = RunSettings()


def current_run() -> RunSettings:
    return _current


@contextmanager
def running_with(settings: RunSettings) -> Iterator[None]:
    """Make these the settings of `current_run` inside the block."""
    global _current
    before, _current = _current, settings
    try:
        yield
    finally:
        _current = before
