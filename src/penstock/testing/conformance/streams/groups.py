"""Cases: the groups of a stream that has its own."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.abc import Feature, GroupFeed, Grouping, TopicStream
from penstock.model import Lease, Pointer, Record
from penstock.testing.conformance.streams.suite import SETTLE_S, StreamSuite, check_values, numbered
from penstock.testing.conformance.suite import needs

PARTITIONS: Final = 4
SESSION_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.1


class Assignments:
    """Who is assigned which partition, and the group's progress, as a checkpoint store would know it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owners: dict[int, str] = {}
        self.next: dict[int, Pointer] = {}
        self.records: dict[int, list[Record]] = defaultdict(list)
        self.violations: list[str] = []

    def share_of(self, member: str) -> set[int]:
        with self.lock:
            return {partition for partition, owner in self.owners.items() if owner == member}

    def count(self) -> int:
        with self.lock:
            return sum(map(len, self.records.values()))


class Member:
    """A member of a group, in its own thread. It records everything, including violations."""

    def __init__(self, name: str, stream: TopicStream, group: str, assignor: str, assignments: Assignments) -> None:
        assert isinstance(stream, Grouping)
        self.name = name
        self._stream = stream
        self._assignments = assignments
        self._leaving = threading.Event()
        self._feed: GroupFeed = stream.group_feed(
            group, self, member=name, assignor=assignor, session_timeout_s=SESSION_TIMEOUT_S
        )
        self._thread = threading.Thread(target=self._run, name=f"member {name}", daemon=True)
        self._thread.start()

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        with self._assignments.lock:
            for partition in partitions:
                owner = self._assignments.owners.setdefault(partition, self.name)
                if owner != self.name:
                    self._assignments.violations.append(f"{self.name} got partition {partition} while {owner} had it")
            return {partition: self._assignments.next.setdefault(partition, 0) for partition in partitions}

    def revoked(self, partitions: Sequence[int]) -> None:
        with self._assignments.lock:
            for partition in partitions:
                if self._assignments.owners.get(partition) == self.name:
                    del self._assignments.owners[partition]

    def lost(self, partitions: Sequence[int]) -> None:
        self.revoked(partitions)

    def leave(self) -> None:
        self._leaving.set()
        self._feed.wake()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive(), f"{self.name} could not leave the group within {SETTLE_S:g} s"

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                for batch in self._feed.poll(100, POLL_S):
                    self._take(batch.partition, batch.start, batch.next, list(batch))
            self._feed.close()
        except Exception as error:
            self._assignments.violations.append(f"{self.name} failed: {error!r}")

    def _take(self, partition: int, start: Pointer, following: Pointer, records: list[Record]) -> None:
        with self._assignments.lock:
            owner = self._assignments.owners.get(partition)
            if owner != self.name:
                self._assignments.violations.append(f"{self.name} got records of {owner}'s partition {partition}")
            expected = self._assignments.next[partition]
            if start != expected:
                self._assignments.violations.append(
                    f"{self.name} got partition {partition} from {start} on, though the group had come to {expected}"
                )
            self._assignments.next[partition] = following
            self._assignments.records[partition] += records


class GroupCases(StreamSuite):
    @needs(Feature.GROUPS, Feature.CHOSEN_PARTITION)
    def test_members_of_a_group_share_its_partitions_and_nobody_has_one_that_another_has(self) -> None:
        self._come_and_go("range")

    @needs(Feature.GROUPS, Feature.CHOSEN_PARTITION)
    def test_members_of_a_group_share_its_partitions_when_they_cooperate(self) -> None:
        self._come_and_go("cooperative")

    def _come_and_go(self, assignor: str) -> None:
        """One member, two members, and one again; after each change, records for all partitions."""
        stream, assignments, group = self.new_stream(PARTITIONS), Assignments(), self.fresh_name("group")

        def join(name: str) -> Member:
            member = Member(name, stream, group, assignor, assignments)
            self.addCleanup(member.leave)
            return member

        def everything_belongs_to(*members: Member) -> bool:
            shares = [assignments.share_of(member.name) for member in members]
            return all(shares) and set().union(*shares) == set(range(PARTITIONS))

        first = join("first")
        self._wait_until(lambda: everything_belongs_to(first), assignments, "a lone member gets all partitions")
        self._send_and_wait(stream, assignments, 0)
        second = join("second")
        self._wait_until(lambda: everything_belongs_to(first, second), assignments, "a second member gets a share")
        self._send_and_wait(stream, assignments, 10)
        first.leave()
        self._wait_until(lambda: everything_belongs_to(second), assignments, "who is left gets all partitions")
        self._send_and_wait(stream, assignments, 20)
        second.leave()
        assert not assignments.owners, f"everybody has left, and yet {assignments.owners} are owned"
        for partition in range(PARTITIONS):
            check_values(assignments.records[partition], numbered(30), f"what the group got of partition {partition}")

    def _send_and_wait(self, stream: TopicStream, assignments: Assignments, first: int) -> None:
        for partition in range(PARTITIONS):
            self.put(stream, numbered(10, first), partition)
        wanted = PARTITIONS * (first + 10)
        self._wait_until(lambda: assignments.count() >= wanted, assignments, f"the group gets {wanted} records")

    def _wait_until(self, reached: Callable[[], bool], assignments: Assignments, what: str) -> None:
        deadline_s = time.monotonic() + SETTLE_S
        while not reached():
            assert not assignments.violations, f"before {what}: {assignments.violations[0]}"
            assert time.monotonic() < deadline_s, (
                f"{what}: not within {SETTLE_S:g} s; owners: {assignments.owners}; {assignments.count()} records came"
            )
            time.sleep(POLL_S / 10)
        assert not assignments.violations, f"when {what}: {assignments.violations[0]}"
