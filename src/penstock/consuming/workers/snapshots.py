"""Snapshots: state that a handler keeps itself, saved and restored as a whole together with the checkpoint.

A handler has two functions for a partition: one returns the state, the other restores it when the partition is
assigned, in this process or another. A snapshot covers exactly the records that the checkpoint calls finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.workers.lanes import Task
from penstock.consuming.workers.runners import Report, Runner, failed, undo
from penstock.errors import ConfigError

SNAPSHOT_KEY: Final = b"\x00penstock-snapshot"
"""The key of a partition's snapshot in its keyed state. Real record keys do not start like this."""


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The two functions of a handler that keeps its own state."""

    get: Callable[[int], Any]
    """Returns the state of a partition: anything that msgpack can encode."""
    restore: Callable[[int, Any], None]
    """Starts a partition with this state; None when there is none yet."""


def restore(snapshots: Snapshots, assigned: AssignedPartition) -> None:
    encoded = assigned.state.get(SNAPSHOT_KEY)
    snapshots.restore(assigned.partition, None if encoded is None else msgspec.msgpack.decode(encoded))


class SnapshotRunner(Runner):
    """Takes a snapshot after each task, which is saved with the records of the task or not at all.

    A partition has one worker at a time, so nothing else changes its state meanwhile.
    """

    def __init__(self, runner: Runner, snapshots: Snapshots) -> None:
        self._runner = runner
        self._snapshots = snapshots

    def run(self, task: Task) -> Report:
        report = self._runner.run(task)
        if report.done > task.low:
            try:
                report.state[SNAPSHOT_KEY] = msgspec.msgpack.encode(self._snapshots.get(task.assigned.partition))
            except Exception as error:
                undo(report)
                reason = ConfigError(f"the snapshot of partition {task.assigned.partition} failed: {error}")
                reason.__cause__ = error
                return failed(report, reason)
        return report

    def close(self) -> None:
        self._runner.close()
