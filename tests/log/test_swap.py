"""Putting compacted segments in place, with a crash at every step: all of the old or all of the new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StorageError
from penstock.log.batches.batch import StoredRecord
from penstock.log.compacting import cleaning, compaction
from penstock.log.compacting.swap import MANIFEST
from penstock.log.disk import Disk
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.statefile import DamagedStateError
from penstock.testing import FaultyDisk
from tests.log.engine import (
    COMPACTED,
    NOW_MS,
    QuickDisk,
    Snapshot,
    committed,
    compact,
    open_log,
    put_values,
    reopen,
    send,
)

SETTINGS = COMPACTED | {"internal.segment.bytes": "300", "index.interval.bytes": "100"}


class Crash(BaseException):
    """The process ends here. Nothing catches it."""


class Crashes:
    """Counts the calls that change a folder, and ends the process at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.at = 0
        self.late = False
        """Whether the call at which it crashes still has its effect."""
        for owner, name in ((Path, "rename"), (Path, "unlink"), (Disk, "write_all"), (Disk, "sync"), (Disk, "open")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.at and not self.late:
                raise Crash
            result = real(*arguments, **options)
            if self.calls == self.at:
                raise Crash
            return result

        return call

    def run(self, action: Callable[[], object], at: int, *, late: bool) -> bool:
        """Whether the action crashed."""
        self.calls, self.at, self.late = 0, at, late
        try:
            action()
        except Crash:
            return True
        finally:
            self.at = 0
        return False


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    """A partition of many segments, most of which compaction replaces by one."""
    log = open_log(tmp_path / "p-0", SETTINGS)
    for number in range(24):
        send(log, (b"%d" % (number % 4), b"%d" % number))
    send(log, (b"unique", b"x" * 180))
    for number in range(8):
        send(log, (b"%d" % (number % 2), b"%d" % number))
    log.roll()
    log.close()
    return tmp_path / "p-0"


def outcomes(dirty: Path) -> tuple[list[StoredRecord], list[StoredRecord]]:
    """The records before and after compaction."""
    snapshot = Snapshot(dirty)
    log = open_log(dirty, SETTINGS)
    old = committed(log)
    compact(log)
    new = committed(log)
    assert len(new) < len(old)
    snapshot.restore()
    return old, new


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_leaves_all_of_the_old_or_all_of_the_new(
    dirty: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    old, new = outcomes(dirty)
    snapshot = Snapshot(dirty)
    crashes = Crashes(monkeypatch)
    seen: set[str] = set()
    step = 1
    while True:
        log = open_log(dirty, SETTINGS)
        plan = compaction.plan(log, NOW_MS)
        assert plan is not None
        cleaned = cleaning.run(plan, disk=QuickDisk())
        crashed = crashes.run(lambda log=log, cleaned=cleaned: compaction.install(log, cleaned), step, late=late)  # type: ignore[misc]
        between = Snapshot(dirty)
        check_reader(dirty, old, new)
        seen.add(check_old_or_new(dirty, old, new, f"crash at step {step}"))
        again = 1
        while True:  # a crash at any step of the recovery from the crash
            between.restore()
            if not crashes.run(lambda: open_log(dirty, SETTINGS), again, late=late):
                break
            check_old_or_new(dirty, old, new, f"crash at step {step}, and at step {again} of opening it again")
            again += 1
        snapshot.restore()
        if not crashed:
            break
        step += 1
    assert step > 10
    assert seen == {"old", "new"}


def check_old_or_new(dirty: Path, old: list[StoredRecord], new: list[StoredRecord], where: str) -> str:
    log, report = reopen(dirty, SETTINGS)
    assert not report.damaged, where
    found = committed(log)
    assert found in (old, new), where
    assert not (dirty / MANIFEST).exists(), where
    assert not list(dirty.glob("*.cleaned")), where
    assert log.end_offset == old[-1].offset + 1, where
    added = put_values(log, 1)
    assert committed(log) == found + added, where
    compact(log)
    assert {record.key: record.value for record in committed(log)} == {
        record.key: record.value for record in [*old, *added]
    }, where
    return "old" if found == old else "new"


def check_reader(dirty: Path, old: list[StoredRecord], new: list[StoredRecord]) -> None:
    """A reader that looks at the folder as the crash left it sees a state that makes sense."""
    found = list(PartitionReader(dirty).read())
    assert set(found) <= set(old)
    assert set(new) <= set(found)
    assert found == sorted(found)


def test_a_crash_while_cleaned_files_are_written_leaves_nothing_behind(dirty: Path) -> None:
    old, new = outcomes(dirty)
    for name in ("00000000000000000000.log.cleaned", "00000000000000000000.index.cleaned", "swap~", "checkpoint~"):
        (dirty / name).write_bytes(b"half of something")
    assert check_old_or_new(dirty, old, new, "") == "old"
    assert not [path for path in dirty.iterdir() if path.name.endswith(("~", ".cleaned"))]


def test_a_flipped_bit_in_the_decision_does_not_matter(dirty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = outcomes(dirty)
    log = open_log(dirty, SETTINGS)
    plan = compaction.plan(log, NOW_MS)
    assert plan is not None
    cleaned = cleaning.run(plan, disk=QuickDisk())
    monkeypatch.setattr(compaction, "finish_swap", lambda *_: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        compaction.install(log, cleaned)
    monkeypatch.undo()
    manifest = dirty / MANIFEST
    content = manifest.read_bytes()
    decided = Snapshot(dirty)
    for position in range(len(content)):
        spoilt = bytearray(content)
        spoilt[position] ^= 1 << position % 8
        manifest.write_bytes(spoilt)
        assert check_old_or_new(dirty, old, new, f"byte {position} of the manifest") == "new"
        decided.restore()
    manifest.write_bytes(content[: len(content) // 2 - 3] + content[len(content) // 2 :][:-3])
    with pytest.raises(DamagedStateError, match=MANIFEST):
        open_log(dirty, SETTINGS)


def test_files_that_vanished_before_the_decision_stop_it(dirty: Path) -> None:
    old, new = outcomes(dirty)
    log = open_log(dirty, SETTINGS)
    plan = compaction.plan(log, NOW_MS)
    assert plan is not None
    cleaned = cleaning.run(plan, disk=QuickDisk())
    next(dirty.glob("*.log.cleaned")).unlink()
    with pytest.raises(StorageError, match="missing"):
        compaction.install(log, cleaned)
    assert committed(log) == old
    assert check_old_or_new(dirty, old, new, "") == "old"


@pytest.mark.parametrize("operation", ["write", "sync", "sync_folder"])
def test_a_disk_that_refuses_the_swap_leaves_the_old_and_it_can_be_tried_again(dirty: Path, operation: str) -> None:
    old, new = outcomes(dirty)
    snapshot = Snapshot(dirty)
    refused = finished = 0
    for passes in range(12):
        disk = FaultyDisk()
        log = open_log(dirty, SETTINGS, disk)
        plan = compaction.plan(log, NOW_MS)
        assert plan is not None
        cleaned = cleaning.run(plan, disk=QuickDisk())
        disk.fail(operation, passes=passes)  # type: ignore[arg-type]
        try:
            compaction.install(log, cleaned)
        except StorageError:
            refused += 1
        else:
            finished += 1
        disk.heal()
        where = f"{operation} failed after {passes} calls"
        if log.failed is None:
            assert committed(log) in (old, new), where
            check_going_on(log, old, where)
        check_old_or_new(dirty, old, new, where) if log.failed else None
        snapshot.restore()
    assert refused
    assert finished


def check_going_on(log: PartitionLog, old: list[StoredRecord], where: str) -> None:
    compact(log)
    assert {record.key: record.value for record in committed(log)} == {r.key: r.value for r in old}, where
