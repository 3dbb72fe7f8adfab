"""Resetting and deleting a group where its progress is kept.

A Kafka group continues at the offsets that Kafka keeps for it. A group of this library continues at its checkpoints;
Kafka's offsets for it are only informative. `penstock groups` and the console both move groups through this module: it
moves the checkpoints, in every store that has them, and Kafka's offsets with them.

The group must not read while it is moved. The leases are read first, then the members, and each lease is then claimed
as it was read: a member that starts in between makes the claim fail, and one that was not stopped is fenced.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.abc import Admin, CheckpointStore, Clock, GroupAdmin
from penstock.errors import ConfigError, FencedError, GroupError, UnknownTopicError
from penstock.model import Change, Checkpoint, CheckpointKey, Lease, Pointer, Position
from penstock.model.administration import GroupDescription, PartitionId
from penstock.model.clock import SystemClock
from penstock.model.pointer_forms import is_named_pointer, parse_position
from penstock.observe.library_groups import ALIVE_S, MEMBER, checkpoints_of, newest

_SHIFT: Final = re.compile(r"[+-]\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a move: a position, or a number of records back or forward."""

    position: Position | None
    shift: int = 0

    @classmethod
    def parse(
        cls,
        text: str,
        now: datetime.datetime,
        parse_pointer: Callable[[str], Pointer] = int,
        *,
        is_counted: bool = True,
    ) -> Target:
        """Parse a position, or +100 or -100 records. Raises ConfigError, which says what can be written.

        `parse_pointer` reads pointers in the stream's own form, after `offset:`. `is_counted`: the stream has
        `Feature.OFFSETS`; if not, it cannot move by a number of records.
        """
        if _SHIFT.fullmatch(text.strip()):
            if not is_counted:
                raise ConfigError(
                    f"{text.strip()} is a number of records, which this stream does not count: use an age (-1h), a "
                    "time, earliest, latest, or offset: and a pointer"
                )
            return cls(None, int(text))
        if is_named_pointer(text.strip()):
            return cls(parse_position(text, now, parse_pointer))
        try:
            return cls(Position.parse(text, now))
        except ConfigError as error:
            raise ConfigError(f"{error}; or a number of records back or forward (-100, +100)") from None


@dataclass(frozen=True, slots=True)
class Move:
    topic: str
    partition: int
    committed: int | None
    to: int
    by: int | None
    """How many offsets forward; negative: back. None: it has committed nothing, or pointers do not count records."""
    note: str
    again: bool = False
    """Whether records that were finished beyond `to` are handled again. The library knows them, Kafka does not."""

    @property
    def is_change(self) -> bool:
        return self.to != self.committed or self.again


def moves_from(
    topics: Admin,
    group: str,
    committed: Mapping[PartitionId, int],
    target: Target,
    places: Sequence[PartitionId],
    chosen_partitions: Sequence[int],
    *,
    is_counted: bool = True,
) -> list[Move]:
    """The moves, in order, of a group that continues at `committed`, in the chosen partitions if there are any. Raises
    UnknownTopicError when one of those does not exist."""
    places = _chosen(group, places, chosen_partitions)
    spans = topics.spans(places)
    located = _locate(topics, target, [place for place in places if place in spans])
    moves = []
    for place in places:
        if place not in spans:
            continue
        topic, partition = place
        before = committed.get(place)
        if target.position is None and before is None:
            raise GroupError(
                f"group {group!r} has committed nothing in {topic}-{partition}: it cannot be moved from there"
            )
        wanted = located[place] if target.position is not None else (before or 0) + target.shift
        span = spans[place]
        to = min(max(wanted, span.start), span.end)
        note = "" if to == wanted else "the earliest record" if to == span.start else "the current end"
        by = to - before if before is not None and is_counted else None
        moves.append(Move(topic, partition, before, to, by, note))
    return moves


def _chosen(group: str, places: Sequence[PartitionId], partitions: Sequence[int]) -> list[PartitionId]:
    missing = set(partitions) - {number for _, number in places}
    if missing:
        raise UnknownTopicError(f"there is no partition {min(missing)} among what would be moved")
    if not places:
        raise GroupError(f"group {group!r} has committed nothing: name the topic to move it in (--topic)")
    return [place for place in places if not partitions or place[1] in partitions]


def _locate(topics: Admin, target: Target, places: list[PartitionId]) -> dict[PartitionId, int]:
    if target.position is None:
        return {}
    located = {}
    for name in dict.fromkeys(topic for topic, _ in places):
        numbers = [number for topic, number in places if topic == name]
        offsets = topics.locate(name, target.position, numbers)
        located.update({(name, number): offset for number, offset in offsets.items()})
    return located


OWNER: Final = "penstock-groups"
"""The owner of a group's leases while it is moved."""
_LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Kept:
    store: CheckpointStore
    leases: Mapping[str, Lease]
    checkpoints: Mapping[PartitionId, Checkpoint]


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Where a group's progress is kept, and how far it is."""

    group: str
    kafka: GroupDescription | None
    kept: Mapping[str, _Kept]
    """The checkpoint stores that have it, by their URLs."""

    @property
    def starts(self) -> dict[PartitionId, int]:
        """Where it continues in each partition: by its checkpoint, or else by Kafka's offset."""
        committed = {} if self.kafka is None else _committed(self.kafka)
        return committed | {place: int(each.start) for place, each in self._checkpoints.items()}

    @property
    def where(self) -> str:
        """Where the progress of the group is kept, as text for people."""
        kept = [f"checkpoints in {name}" for name in self.kept]
        return ", ".join([*kept, *(["the Kafka group's offsets"] if self.kafka is not None else [])])

    @property
    def _checkpoints(self) -> dict[PartitionId, Checkpoint]:
        return newest({name: each.checkpoints for name, each in self.kept.items()})

    def has_more_than(self, place: PartitionId, start: int) -> bool:
        """Whether it has finished records beyond this offset."""
        return any(
            found is not None and (found.start, found.next) != (start, start)
            for found in (each.checkpoints.get(place) for each in self.kept.values())
        )


@dataclass(frozen=True, slots=True)
class Moved:
    group: str
    moves: tuple[Move, ...]
    """One for each requested partition, also where nothing changed."""
    partitions: int
    """In how many of them the offset changed."""
    where: str

    def __str__(self) -> str:
        if not self.partitions:
            return f"Nothing was moved: {self.group} is there already."
        count = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        return f"Moved {self.group} in {count}: {self.where}."


def find_progress(
    groups: GroupAdmin,
    stores: Mapping[str, CheckpointStore],
    group: str,
    *,
    is_given: bool = False,
    may_be_new: bool = False,
) -> GroupProgress:
    """Where a group's progress is kept. Raises GroupError for an unknown group, unless it `may_be_new`.

    `is_given`: the user has named the stores, so the group must be in one of them.
    """
    kept = {}
    for name, store in stores.items():
        leases = {lease.name: lease for lease in store.leases(group)}
        checkpoints = checkpoints_of(store, group)
        if leases or checkpoints:
            kept[name] = _Kept(store, leases, checkpoints)
    missing: GroupError | None = None
    kafka = None
    try:
        kafka = groups.describe(group)
    except GroupError as error:
        missing = error
    if is_given and not kept:
        told = "Kafka has a group of this name" if kafka is not None else "and Kafka has no such group"
        raise GroupError(
            f"there are no checkpoints of group {group!r} in {', '.join(stores)}; {told}. Name the store that the app "
            "uses, or omit --checkpoints for a group of Kafka"
        )
    if missing is not None and not kept and not may_be_new:
        raise missing
    return GroupProgress(group, kafka, kept)


def plan_reset(
    topics: Admin,
    progress: GroupProgress,
    target: Target,
    chosen_topics: Sequence[str] = (),
    chosen_partitions: Sequence[int] = (),
    *,
    is_counted: bool = True,
) -> list[Move]:
    """What a reset would do to each partition: of the chosen topics, or of all that the group reads."""
    _check_known(progress)
    starts = progress.starts
    names = chosen_topics or sorted({topic for topic, _ in _read_by(progress)})
    there = {each.name: each.partitions for each in topics.all()}
    for topic in chosen_topics:
        topics.require(topic)
    places = [(topic, number) for topic in names for number in there.get(topic, ())]
    if target.position is None and not chosen_topics:
        places = [place for place in places if place in starts]  # a relative move needs a start
    moves = moves_from(topics, progress.group, starts, target, places, chosen_partitions, is_counted=is_counted)
    return [_noted(progress, move) for move in moves]


def reset(groups: GroupAdmin, progress: GroupProgress, moves: Sequence[Move], now_ms: int) -> Moved:
    """Move the group to these offsets. Raises GroupError, naming the member, when one starts meanwhile.

    Call `check_stopped` first. What was moved before a kill stays moved: run it again to move the rest.
    """
    wanted = [move for move in moves if move.is_change]
    for each in progress.kept.values():
        _move_checkpoints(each, progress, wanted, now_ms)
    offsets = {(move.topic, move.partition): move.to for move in wanted}
    if offsets and (progress.kafka is not None or not progress.kept):
        groups.move(progress.group, offsets, is_checkpointed=bool(progress.kept))
    where = progress.where or "the Kafka group's offsets"
    return Moved(progress.group, tuple(moves), len(wanted), where)


def delete(groups: GroupAdmin, progress: GroupProgress) -> str:
    """Delete the group everywhere, and return where that was. Call `check_stopped` first."""
    _check_known(progress)
    for each in progress.kept.values():
        for lease in each.leases.values():
            if lease.owner:  # a dead member's: deletion is refused while a lease is held
                each.store.release(_claimed(each.store, lease.group, lease.name, lease))
        each.store.forget(progress.group)
    if progress.kafka is not None and progress.group in {each.name for each in groups.all()}:
        groups.delete(progress.group)  # unless the store in the brokers has done so
    return progress.where


def check_stopped(
    progress: GroupProgress,
    *,
    clock: Clock | None = None,
    patience_s: float = ALIVE_S,
    on_wait: Callable[[str], None] = lambda text: None,
) -> None:
    """Raise GroupError, naming them, while members of the group run.

    Members of lease groups, and members that share partitions record by record, are known by what they change in the
    store. Where one of them has left a lease or a claim behind, it is watched for `patience_s`, or for as long as its
    claim lasts; `on_wait` is called then. Kafka knows the members of all others.
    """
    kafka = progress.kafka
    if kafka is not None and kafka.is_active:
        names = ", ".join(sorted(f"{each.client_id} at {each.host}" for each in kafka.members))
        count = f"{len(kafka.members)} member{'' if len(kafka.members) == 1 else 's'}"
        raise GroupError(
            f"group {progress.group!r} is {kafka.state} with {count}{f' ({names})' if names else ''}: stop them first, "
            "or they would continue where they are"
        )
    clock = clock or SystemClock()
    before = {name: _signs(each.store, progress.group) for name, each in progress.kept.items()}
    suspects = sorted({owner for found in before.values() for owner in found})
    if not suspects:
        return
    lasts_ms = [
        claim.lasts_ms
        for each in progress.kept.values()
        for found in each.checkpoints.values()
        for claim in found.claims
    ]
    watch_s = max(patience_s, max(lasts_ms, default=0) / 1000)
    on_wait(f"{suspects[0]} may still run: watching it for {watch_s:g} s")
    until_s = clock.monotonic_s() + watch_s
    while clock.monotonic_s() < until_s:
        clock.sleep(min(_LOOK_EVERY_S, max(0.0, until_s - clock.monotonic_s())))
        for name, each in progress.kept.items():
            now = _signs(each.store, progress.group)
            alive = sorted(owner for owner in {*now, *before[name]} if now.get(owner) != before[name].get(owner))
            if alive:
                raise GroupError(f"group {progress.group!r} has a member that runs: {alive[0]}; stop it first")


def _signs(store: CheckpointStore, group: str) -> dict[str, object]:
    """What members leave in a store, by their names. A running member changes it, sooner or later."""
    found: dict[str, list[object]] = {}
    for lease in store.leases(group):
        if lease.owner and lease.name.startswith(MEMBER):
            found.setdefault(lease.owner, []).append(lease)
    for checkpoint in store.checkpoints(group).values():
        for claim in checkpoint.claims:
            if claim.owner:
                found.setdefault(claim.owner, []).append(claim)
    return {owner: tuple(signs) for owner, signs in found.items()}


def _check_known(progress: GroupProgress) -> None:
    if progress.kafka is not None and progress.kafka.is_checkpointed and not progress.kept:
        raise GroupError(
            f"group {progress.group!r} belongs to an app, which continues at its checkpoints and not at Kafka's "
            f"offsets. "
            "They are in none of the stores that were searched: name the app's store, such as --checkpoints "
            "postgresql://HOST/DATABASE"
        )


def _read_by(progress: GroupProgress) -> set[PartitionId]:
    assigned = () if progress.kafka is None else (each for each in progress.kafka.progress)
    return {*progress.starts, *((each.topic, each.partition) for each in assigned)}


def _committed(kafka: GroupDescription) -> dict[PartitionId, int]:
    return {(each.topic, each.partition): each.committed for each in kafka.progress if each.committed is not None}


def _noted(progress: GroupProgress, move: Move) -> Move:
    if move.to == move.committed and progress.has_more_than((move.topic, move.partition), move.to):
        return replace(move, again=True, note="what was finished beyond it is handled again")
    return move


def _move_checkpoints(kept: _Kept, progress: GroupProgress, moves: Sequence[Move], now_ms: int) -> None:
    """Claim all leases, then save all checkpoints: a refused claim has moved nothing here."""
    store = kept.store
    topics = {topic for topic, _ in kept.checkpoints}
    is_elsewhere = {topic for each in progress.kept.values() for topic, _ in each.checkpoints} - topics
    keys = {
        CheckpointKey(progress.group, move.topic, move.partition): move.to
        for move in moves
        if move.topic not in is_elsewhere
    }
    claimed: dict[CheckpointKey, Lease] = {}
    saved = 0
    try:
        for key in keys:
            claimed[key] = _claimed(store, key.group, key.lease_name, kept.leases.get(key.lease_name))
        for key, to in keys.items():
            before = kept.checkpoints.get((key.topic, key.partition))
            processed, delivered = (0, 0) if before is None else (before.processed, before.delivered)
            moved = Checkpoint(start=to, next=to, processed=processed, delivered=delivered, saved_ms=now_ms)
            store.save(claimed[key], key, Change(moved))
            saved += 1
    except FencedError as error:
        raise GroupError(
            f"a member of group {progress.group!r} started while it was moved, after {saved} of {len(keys)} "
            f"partitions: stop it and run this again ({error})"
        ) from error
    finally:
        for lease in claimed.values():
            store.release(lease)


def _claimed(store: CheckpointStore, group: str, name: str, seen: Lease | None) -> Lease:
    lease = store.claim(group, name, OWNER, seen)
    if lease is None:
        now = next((each for each in store.leases(group, name) if each.name == name), None)
        who = f" by {now.owner}" if now is not None and now.owner else ""
        raise GroupError(f"{name} of group {group!r} was taken{who} just now: stop the group's members first")
    return lease
