"""A group by lease in processes of their own, on one SQLite database, killed and stopped while they work."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from tests.consuming.eventually import wait_until
from tests.consuming.group_member import GROUP
from tests.tidy.source import ROOT

TTL_S = 1.0
PARTITIONS = 4


@dataclass(frozen=True)
class Line:
    at_s: float
    member: str
    word: str
    partition: int
    epoch: int


@dataclass
class Member:
    name: str
    process: subprocess.Popen[str]
    lines: list[Line] = field(default_factory=list)

    def hear(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            at_s, word, partition, epoch = text.split()
            self.lines.append(Line(float(at_s), self.name, word, int(partition), int(epoch)))

    def holds(self) -> set[int]:
        held: set[int] = set()
        for line in list(self.lines):
            if line.word == "assigned":
                held.add(line.partition)
            elif line.word in ("revoked", "lost"):
                held.discard(line.partition)
        return held


@contextmanager
def members_of(database: Path, names: list[str]) -> Iterator[list[Member]]:
    command = [sys.executable, "-m", "tests.consuming.group_member", str(database)]
    members = []
    threads = []
    try:
        for name in names:
            process = subprocess.Popen(
                [*command, name, str(TTL_S), str(PARTITIONS)], stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            members.append(Member(name, process))
            threads.append(threading.Thread(target=members[-1].hear))
            threads[-1].start()
        yield members
    finally:
        for member in members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGCONT)
                member.process.kill()
            member.process.wait()
        for thread in threads:
            thread.join()
        for member in members:
            assert member.process.stdout is not None
            member.process.stdout.close()


def check_nothing_was_owned_twice(members: list[Member]) -> None:
    """A save under one epoch never comes after a save, or even a claim, under a later one."""
    lines = sorted((line for member in members for line in member.lines), key=lambda line: line.at_s)
    owners: dict[tuple[int, int], str] = {}
    newest: dict[int, int] = {}
    for line in lines:
        if line.word == "assigned":
            assert owners.setdefault((line.partition, line.epoch), line.member) == line.member
            assert line.epoch > newest.get(line.partition, 0)
            newest[line.partition] = line.epoch
        elif line.word == "saved":
            assert owners[line.partition, line.epoch] == line.member
            # Said after it was done, so another may have said in between that it has claimed: not much later, though.
            later = [other for other in lines if other.word == "assigned" and other.partition == line.partition]
            claimed_s = min((other.at_s for other in later if other.epoch > line.epoch), default=float("inf"))
            assert line.at_s <= claimed_s + 0.25, f"{line} was saved long after another owner had claimed"


def test_partitions_of_a_killed_and_of_a_stopped_process_are_taken_over_and_never_owned_twice(tmp_path: Path) -> None:
    database = tmp_path / "checkpoints.db"
    with members_of(database, ["a", "b", "c"]) as members:
        wait_until(lambda: sorted(len(member.holds()) for member in members) == [1, 1, 2])
        killed, stopped, left = members
        had = killed.holds()
        killed_s = time.monotonic()
        killed.process.kill()
        wait_until(lambda: len(stopped.holds() | left.holds()) == PARTITIONS)
        taken_s = min(
            line.at_s
            for member in (stopped, left)
            for line in member.lines
            if line.word == "assigned" and line.partition in had and line.at_s > killed_s
        )
        print(f"taken over {taken_s - killed_s:.2f} s after kill -9, with a ttl of {TTL_S} s")
        wait_until(lambda: {len(stopped.holds()), len(left.holds())} == {2})

        stopped.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: len(left.holds()) == PARTITIONS)
        before = len(stopped.lines)
        stopped.process.send_signal(signal.SIGCONT)
        wait_until(lambda: "lost" in [line.word for line in stopped.lines[before:]])
        wait_until(lambda: {len(stopped.holds()), len(left.holds())} == {2})
        words = [line.word for line in stopped.lines[before:]]
        # It may have been stopped between a save and saying so.
        assert words[: words.index("lost")].count("saved") <= 1

        for member in (stopped, left):
            member.process.terminate()
        for member in (stopped, left):
            assert member.process.wait(20) == 0
    check_nothing_was_owned_twice(members)
    store = SqliteCheckpoints(database)
    names = {lease.name: lease.owner for lease in store.leases(GROUP)}
    store.close()
    assert [name for name in names if name.startswith("member:")] == [], "who leaves well leaves nothing behind"
    assert set(names.values()) == {""}
