"""Snapshots: state that a handler keeps itself, saved and restored as a whole, together with the pointers.

For each partition there are two functions: one gives the state as it is, the other takes it back when the partition is
begun, in this process or another. Between them lie exactly the records that the checkpoint calls finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.consuming.lanes import Task
from penstock.consuming.runners import Report, Runner, failed, undo
from penstock.consuming.share import Share
from penstock.errors import ConfigError

SNAPSHOT_KEY: Final = b"\x00penstock-snapshot"
"""Where, among the keyed state of a partition, its snapshot is kept. No key of a record begins like this by chance."""


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The two functions of a handler that keeps its own state."""

    get: Callable[[int], Any]
    """The state of a partition, as anything that msgpack can express."""
    restore: Callable[[int, Any], None]
    """Begin a partition with this state; None when there is none yet."""


def restore(snapshots: Snapshots, share: Share) -> None:
    encoded = share.state.get(SNAPSHOT_KEY)
    snapshots.restore(share.partition, None if encoded is None else msgspec.msgpack.decode(encoded))


class SnapshotRunner:
    """Takes a snapshot after each task. It is saved together with the records of the task, or not at all.

    A partition has one worker at a time, so nothing else changes its state meanwhile.
    """

    def __init__(self, runner: Runner, snapshots: Snapshots) -> None:
        self._runner = runner
        self._snapshots = snapshots

    def run(self, task: Task) -> Report:
        report = self._runner.run(task)
        if report.done > task.low:
            try:
                report.state[SNAPSHOT_KEY] = msgspec.msgpack.encode(self._snapshots.get(task.share.partition))
            except Exception as error:
                undo(report)
                reason = ConfigError(f"the snapshot of partition {task.share.partition} failed: {error}")
                reason.__cause__ = error
                return failed(report, reason)
        return report

    def close(self) -> None:
        self._runner.close()
