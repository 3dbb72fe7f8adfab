"""What whoever starts a pipeline decides, as opposed to what its author wrote: `penstock run` sets it."""

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
    """How the pipelines of a program are run. What is None is left to the program."""

    master: str | None = None
    """local[2], spark://host:7077, yarn, k8s://...; by default all cores of this machine."""
    once: bool = False
    """Process what is there, then end."""
    start: str | None = None
    """Where queries without a checkpoint begin: earliest, latest, or a time."""
    engine: Engine | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark by its own names; they win over everything else."""
    version: str | None = None
    """Run as this version of the pipeline, beside the others: with checkpoints of its own, into topics of its own. By
    default it is the current one."""
    reprocess: bool = False
    """Run as a version that has not caught up yet: the one that is given, or was begun before, or else a new one."""
    on_start: Callable[[Pipeline], None] | None = None
    """Hears of each pipeline before its queries begin; what it raises keeps them from it."""
    program: str | None = None
    """The file that `penstock run` runs; executors get it too."""


_current = RunSettings()


def current_run() -> RunSettings:
    return _current


@contextmanager
def running_with(settings: RunSettings) -> Iterator[None]:
    """What pipelines find while a program runs."""
    global _current
    before, _current = _current, settings
    try:
        yield
    finally:
        _current = before
