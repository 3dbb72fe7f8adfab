"""Groups: one of them with its members; moving it, with a look first at what would move; and removing it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from penstock.abc import CheckpointStore
from penstock.console.checkpoint_moves import move_checkpoints, starts_of
from penstock.console.link import Link
from penstock.console.views import GroupDetail, MemberFacts
from penstock.errors import BrokerUnavailableError, GroupError, PenstockError
from penstock.observe.facts import Snapshot
from penstock.streams.kafka.groups import GroupDescription
from penstock.streams.kafka.moves import Move, Target, moved_places, moves_from, plan_moves


class Groups:
    """What the console does with groups. Any thread may use it."""

    def __init__(
        self,
        link: Link,
        snapshot: Callable[[], Snapshot],
        look_now: Callable[[], Snapshot],
        now: Callable[[], datetime.datetime],
        store_of: Callable[[str], CheckpointStore],
    ) -> None:
        """`store_of` gives the checkpoint store of one of the library's groups."""
        self._link = link
        self._snapshot = snapshot
        self._look_now = look_now
        self._now = now
        self._store_of = store_of

    def detail(self, name: str) -> GroupDetail:
        """A group; what was last known of it, with why, when the broker cannot be asked."""
        snapshot = self._snapshot()
        if name not in snapshot.groups:
            snapshot = self._look_now()
        facts = snapshot.groups.get(name)
        if facts is None:
            if snapshot.problem is not None:
                raise BrokerUnavailableError(snapshot.problem)
            raise GroupError(f"there is no group {name!r}")
        try:
            found = self._description(name)
        except PenstockError as error:
            return GroupDetail(facts, (), "", str(error))
        if found is None:
            return GroupDetail(facts, (), "", snapshot.problem)
        members = tuple(MemberFacts(each.id, each.client_id, each.host, each.assignment) for each in found.members)
        return GroupDetail(facts, members, found.assignor, snapshot.problem)

    def plan(self, group: str, to: str, topics: Sequence[str], partitions: Sequence[int]) -> list[Move]:
        """What a reset would do. GroupError while the group has members."""
        target = Target.parse(to, self._now())
        administration = self._link.topics()
        store = self._library_store(group)
        if store is None:
            return plan_moves(administration, self._link.groups(), group, target, topics, partitions)
        self._check_idle(group)
        return moves_from(administration, group, starts_of(store, group), target, topics, partitions)

    def reset(self, group: str, to: str, topics: Sequence[str], partitions: Sequence[int]) -> list[Move]:
        """Move the group, and give what was moved."""
        moves = self.plan(group, to, topics, partitions)
        store = self._library_store(group)
        if store is not None:
            move_checkpoints(store, group, moves, round(1000 * self._now().timestamp()))
        changed = moved_places(moves)
        if changed and (store is None or self._description(group) is not None):
            self._link.groups().move(group, changed)
        return moves

    def delete(self, group: str) -> None:
        groups = self._link.groups()
        found = groups.describe(group)
        if found.is_active:
            raise GroupError(
                f"group {group!r} is {found.state} with {len(found.members)} members: stop them before you delete it"
            )
        groups.delete(group)

    def _description(self, group: str) -> GroupDescription | None:
        """What Kafka knows of a group; None: nothing, as of those of the library that are kept by leases."""
        try:
            return self._link.groups().describe(group)
        except GroupError:
            return None

    def _library_store(self, group: str) -> CheckpointStore | None:
        facts = self._snapshot().groups.get(group) or self._look_now().groups.get(group)
        return self._store_of(group) if facts is not None and facts.is_library else None

    def _check_idle(self, group: str) -> None:
        found = self._description(group)
        facts = self._look_now().groups.get(group)
        if (found is not None and found.is_active) or (facts is not None and facts.members):
            raise GroupError(f"group {group!r} has members: stop them first, or they would go on where they are")
