"""Groups on the stream in memory, of a few lines, to show what the suite says about groups. Subclasses have one defect.

Members look at each poll which partitions should be theirs, and take one when the member before has let go of it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock.abc import Feature, Features, GroupFeed, GroupListener
from penstock.model import Batch, Pointer
from penstock.streams.memory.streams import MemoryFeed, MemoryTopicStream
from penstock.streams.memory.topics import Topic

TURN_S = 0.01


class Coordinator:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.members: list[FairFeed] = []
        self.owners: dict[int, FairFeed] = {}


class FairFeed(MemoryFeed):
    """`abc.GroupFeed`."""

    def __init__(self, topic: Topic, coordinator: Coordinator, listener: GroupListener) -> None:
        super().__init__(topic)
        self.coordinator = coordinator
        self.listener = listener
        self.share: set[int] = set()
        with coordinator.lock:
            coordinator.members.append(self)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        with self.coordinator.lock:
            wanted = self.wanted()
            self.let_go(self.share - wanted)
            free = [partition for partition in wanted - self.share if self.is_free(partition)]
            for partition in free:
                self.coordinator.owners[partition] = self
        self.share.update(free)
        for partition, start in self.listener.assigned(dict.fromkeys(free)).items():
            self.add(partition, self.begin_at(start))
        return super().poll(limit, min(wait_s, TURN_S))

    def wanted(self) -> set[int]:
        members = self.coordinator.members
        return {each for each in range(self._topic.partition_count) if members[each % len(members)] is self}

    def is_free(self, partition: int) -> bool:
        return partition not in self.coordinator.owners

    def begin_at(self, start: Pointer) -> Pointer:
        return start

    def let_go(self, partitions: set[int]) -> None:
        if partitions:
            self.listener.revoked(sorted(partitions))
        for partition in partitions:
            self.stop_reading(partition)
            if self.coordinator.owners.get(partition) is self:
                del self.coordinator.owners[partition]
        self.share -= partitions

    def stop_reading(self, partition: int) -> None:
        self.remove(partition)

    def seek(self, partition: int, start: Pointer) -> None:
        self.add(partition, start)

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        return

    def close(self) -> None:
        with self.coordinator.lock:
            self.coordinator.members.remove(self)
            self.let_go(set(self.share))
        super().close()


class GroupedStream(MemoryTopicStream):
    kind: ClassVar[type[FairFeed]] = FairFeed
    coordinators: ClassVar[dict[tuple[str, str], Coordinator]] = {}

    @property
    def features(self) -> Features:
        return super().features | {Feature.GROUPS}

    def group_feed(
        self, group: str, listener: GroupListener, *, member: str, assignor: str, session_timeout_s: float
    ) -> GroupFeed:
        coordinator = self.coordinators.setdefault((self.topic, group), Coordinator())
        return self.kind(self._there(), coordinator, listener)


def with_groups_of(kind: type[FairFeed]) -> type[MemoryTopicStream]:
    return type("Grouped", (GroupedStream,), {"kind": kind})


class HasTwoOwners(FairFeed):
    """Does not wait until the member before has let go."""

    def is_free(self, partition: int) -> bool:
        return True


class KeepsServingWhatIsRevoked(FairFeed):
    def stop_reading(self, partition: int) -> None:
        return


class StartsAnew(FairFeed):
    """Begins where it likes, not where it is told to."""

    def begin_at(self, start: Pointer) -> Pointer:
        return 0


class NeverShares(FairFeed):
    def wanted(self) -> set[int]:
        first = self.coordinator.members[0] is self
        return set(range(self._topic.partition_count)) if first else set()


class NeverLetsGo(FairFeed):
    """Leaves without a word, and keeps what it had."""

    def close(self) -> None:
        with self.coordinator.lock:
            self.coordinator.members.remove(self)
