"""Which jobs read and write which data, for tools that show the lineage of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Dataset:
    """A topic, table, folder or queue, as OpenLineage names it."""

    namespace: str
    """The system that has it, such as `kafka://broker-1:9092`."""
    name: str


class LineageRun(Protocol):
    """A run of a job that was reported as started. Thread-safe; no method waits or raises."""

    def reads(self, inputs: Sequence[Dataset]) -> None:
        """The job reads these now. No effect if they are the same as before."""

    def end(self, error: BaseException | None = None, *, stopped: bool = False) -> None:
        """The run has failed with an error, was stopped before its end, or is complete. Only the first call counts."""


class Lineage(Protocol):
    """Is told about the runs of handlers and queries. Set as `penstock.model.observing.OBSERVED.lineage`."""

    def start(
        self, job: str, kind: str, inputs: Sequence[Dataset], outputs: Sequence[Dataset], *, ends: bool
    ) -> LineageRun:
        """A run of a job begins. `kind` is HANDLER or QUERY; a run that `ends` processes what is there. Must not wait
        or raise."""
