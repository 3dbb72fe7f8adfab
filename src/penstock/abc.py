"""The extension points. Each is a small Protocol; its contract stands in the docstrings.

All are synchronous and blocking, and may be called from any thread unless they say otherwise. A backend declares what
it can do in `features`; what it cannot is refused when a program is built. Each kind has a conformance suite in
`penstock.testing.conformance`, which crashes a backend on purpose: run it on your own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from penstock.model import (
    Batch,
    Change,
    Checkpoint,
    CheckpointKey,
    DeadLetter,
    Happening,
    Lease,
    LetterFilter,
    NewRecord,
    Pointer,
    Position,
    Receipt,
    Record,
)


class Feature(StrEnum):
    """What a backend may or may not be able to do. The text completes "... cannot do this: it has no ..."."""

    PARTITIONS = "more than one partition"
    CHOSEN_PARTITION = "way to choose the partition of a record"
    KEYS = "keys"
    HEADERS = "headers"
    TIMES = "positions at a time"
    IDEMPOTENCE = "protection against a record being stored twice"
    GROUPS = "groups of its own"
    TRANSACTIONS = "transactions"
    DURABLE = "memory beyond the process"
    """What was acknowledged is there after every client was killed."""
    LEASES = "leases that several processes can compete for"
    STATE = "place for keyed state"
    HISTORY = "history"
    DEDUPLICATION = "memory of idempotency keys"
    REDELIVERY = "redelivery"
    DELAYED_REDELIVERY = "delayed redelivery"


Features = frozenset[Feature]


class Stream(Protocol):
    """One topic of a system that keeps records in order and lets them be read again."""

    @property
    def topic(self) -> str: ...

    @property
    def features(self) -> Features: ...

    def partitions(self) -> Sequence[int]:
        """The partitions there are now, ascending. Their number may grow. Raises UnknownTopicError."""

    def locate(self, partition: int, position: Position) -> Pointer:
        """Where reading begins for this position: at a record, or behind the last one.

        At a time: the first record with this timestamp or a later one, or the end when there is none. At a pointer:
        that pointer, whether or not there is a record. Without `Feature.TIMES`, a position at a time is a ConfigError.
        """

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        """The earliest pointer that can be read, and the place behind the last record."""

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        """At most `limit` records from `start` on, as soon as there is one; an empty batch after `wait_s` without any.

        `batch.start` is `start`, and `batch.next` is where the next read goes on: behind the last record of the batch,
        or further where nothing else lies. Reading changes nothing: the same read gives the same records until they
        expire. Records that expired before they were read are an OffsetOutOfRangeError, never silently skipped.
        """

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """Append records in this order. One receipt each, settled when the record is stored or was refused.

        Records with one key, or with none and one chosen partition, keep their order, also when some are tried again.
        It may return before anything is stored, and blocks while more than the stream can take is under way.
        """

    def close(self) -> None:
        """Let go of everything. What was appended and is not settled by now is settled first, as far as it can be."""


@runtime_checkable
class Streams(Protocol):
    """A system of streams, connected: what a URL leads to."""

    @property
    def url(self) -> str: ...

    @property
    def features(self) -> Features: ...

    def stream(self, topic: str) -> Stream:
        """A topic of the system. It need not exist yet."""

    def topics(self) -> Sequence[str]: ...

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        """Raises TopicExistsError, InvalidTopicError, ConfigError."""

    def close(self) -> None: ...


class Feed(Protocol):
    """Several partitions of one topic, read ahead of who asks. Used by one thread, but for `wake`.

    A stream that has a better way to do this than calling `read` for each partition has a method `feed() -> Feed`.
    """

    def add(self, partition: int, start: Pointer) -> None:
        """Begin to read a partition, or go on elsewhere in it."""

    def remove(self, partition: int) -> None:
        """No batch of it comes any more."""

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        """What has come, at most `limit` records, as soon as there is something, or nothing after `wait_s`.

        For each partition, a batch starts where the one before it ended. OffsetOutOfRangeError as for `Stream.read`,
        with the `partition` it names removed; the others go on.
        """

    def wake(self) -> None:
        """End a `poll` that waits, now, or else the next one. May be called from any thread."""

    def close(self) -> None: ...


@runtime_checkable
class Feeding(Protocol):
    """A stream with a feed of its own."""

    def feed(self) -> Feed: ...


class GroupListener(Protocol):
    """Who hears which partitions are its own. Called by a `GroupFeed` from inside `poll` and `close`."""

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        """These are ours now. Gives where to begin in each.

        With each comes the lease on its checkpoint, where the group is kept by leases; where it is kept by the stream,
        None, and the listener claims it.
        """

    def revoked(self, partitions: Sequence[int]) -> None:
        """Others will get these when this returns: finish or hand back what is in flight, and save. Return soon."""

    def lost(self, partitions: Sequence[int]) -> None:
        """Others may have had these for a while: stop, and write nothing."""


class GroupFeed(Feed, Protocol):
    """A feed whose partitions are this member's share of a group. `add` and `remove` are not for its user."""

    def seek(self, partition: int, start: Pointer) -> None:
        """Go on elsewhere in a partition that is ours."""

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        """Show the stream how far the group has come, where the stream wants to know. It decides nothing."""


@runtime_checkable
class Grouping(Protocol):
    """A stream with `Feature.GROUPS`."""

    def group_feed(
        self, group: str, listener: GroupListener, *, member: str, assignor: str, session_timeout_s: float
    ) -> GroupFeed:
        """Join a group. `member` names this member in what people see; `assignor` is range, roundrobin, sticky or
        cooperative."""


class Outcome(StrEnum):
    """How a delivery of a queue is settled."""

    DONE = "done"
    RETRY = "retry"
    """Hand it out again."""
    REJECT = "reject"
    """Never hand it out again; to the queue's own dead letters, if it has any."""


class Delivery(Protocol):
    """A record that a queue has handed out."""

    @property
    def record(self) -> Record: ...

    @property
    def attempt(self) -> int:
        """1 when it was never handed out before, as far as the queue can tell."""


class Queue(Protocol):
    """A system that hands a record out and forgets it once it is settled."""

    @property
    def features(self) -> Features: ...

    def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        """At most `limit` deliveries, as soon as there is one; none after `wait_s`.

        A delivery that is not settled, because its receiver died or let the visibility time pass, is handed out again.
        """

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        """Say what became of it. `delay_s` for RETRY needs `Feature.DELAYED_REDELIVERY`.

        Settling too late, when it was handed out again, is a StaleDeliveryError: somebody else has it.
        """

    def send(self, records: Sequence[NewRecord]) -> None:
        """Returns when the queue has them all."""

    def close(self) -> None: ...


class Channel(Protocol):
    """Direct transport with no memory."""

    def listen(self, wait_s: float) -> Sequence[Record]:
        """What has arrived, as soon as there is something; nothing after `wait_s`."""

    def send(self, records: Sequence[NewRecord]) -> None: ...

    def close(self) -> None: ...


class CheckpointStore(Protocol):
    """Keeps the checkpoints of groups, and the leases that say who may write them.

    It compares and sets, atomically, and judges no time: whether an owner is dead is decided by those who compete, by
    watching the lease's beat with their own clocks. Everything saved is there after a kill -9 of the one who saved it.
    Raises StoreUnavailableError when the store cannot be reached: the caller tries again.
    """

    @property
    def features(self) -> Features: ...

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        """Become the owner of a lease, if it still is as it was `seen`; None: if there is none.

        Gives the new lease, whose epoch is one higher than the last, with beat 0; or None when it is not as it was
        seen. Also who holds it already may claim it again, and gets a higher epoch. From then on, what the owner before
        writes is refused.
        """

    def renew(self, lease: Lease) -> Lease:
        """The same lease with its beat one higher. FencedError when its owner or epoch has changed."""

    def release(self, lease: Lease) -> None:
        """Nobody holds it any more; its epoch stays. Without effect when somebody else holds it."""

    def leases(self, group: str) -> Sequence[Lease]:
        """All leases of a group, released ones too, in the order of their names."""

    def forget_lease(self, lease: Lease) -> None:
        """Remove a lease if it is still like this. For members of a group that are gone, never for partitions."""

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        """The checkpoint as it was last saved. CorruptCheckpointError when it cannot be trusted."""

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """Save everything in the change at once. FencedError, and nothing is saved, unless `lease`, which is the one
        named `key.lease_name`, has this owner and epoch still (its beat does not matter).

        The set of finished records may be of any size.
        """

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        """All checkpoints of a group."""

    def groups(self) -> Sequence[str]:
        """The groups that have leases or checkpoints here."""

    def forget(self, group: str) -> None:
        """Remove everything about a group that nobody is in. GroupError when one of its leases is held."""

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        """The keyed state of a partition, as of its checkpoint. With `Feature.STATE`."""

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        """Which of these idempotency keys are remembered. With `Feature.DEDUPLICATION`."""

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[Happening]:
        """What happened to the record at `pointer`, or in the partition, oldest first; at most the newest `limit`
        lines. With `Feature.HISTORY`."""

    def close(self) -> None: ...


class StoreTransaction(Protocol):
    """A transaction in a database that also keeps checkpoints."""

    @property
    def connection(self) -> Any:
        """The database's own connection, inside the transaction. Committing and rolling back are not for its user."""

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """As `CheckpointStore.save`, but it counts when the transaction commits."""

    def savepoint(self) -> AbstractContextManager[None]:
        """What is done inside is undone, and only that, when the block is left with an error."""


@runtime_checkable
class TransactionalStore(Protocol):
    """A checkpoint store with `Feature.TRANSACTIONS`: effects and checkpoint in one SQL transaction."""

    def transaction(self) -> AbstractContextManager[StoreTransaction]:
        """Commits when the block is left, rolls back when it is left with an error.

        Threads may each have one at a time; a store with a single writer makes them wait for each other.
        """


class DeadLetters(Protocol):
    """Where records go that were given up, on any storage."""

    @property
    def features(self) -> Features: ...

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """They are durable, and waiting, when this returns. Texts may be cut, the record never is.

        A letter whose id is there already is kept once, in its place, with what is newer (by `last_ms`) and the higher
        number of `redrives`. One that was taken or redriven is waiting again; one that was discarded only if what is
        put is newer than what was.
        """

    def browse(self, which: LetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """Letters in the order in which they were first put, at most `limit`; `after` is the id of the last one seen,
        whether or not it still matches. ConfigError when there is no such letter."""

    def count(self, which: LetterFilter) -> int: ...

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        """Mark those that are waiting, or were taken by anybody, as taken by `taker`, and give them in their order."""

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        """What became of letters taken: REDRIVEN (and `redrives` one higher), or WAITING again. Without effect on those
        that are not taken by `taker` any more: somebody else took them, or they were put again."""

    def discard(self, ids: Collection[str]) -> int:
        """Mark as DISCARDED, whatever they were. Gives how many were not before."""

    def close(self) -> None: ...


class Buffered(Protocol):
    """A record in a buffer, with its number there."""

    @property
    def sequence(self) -> int: ...

    @property
    def record(self) -> NewRecord: ...


class Buffer(Protocol):
    """What a producer holds before the stream has acknowledged it: first in, first out."""

    @property
    def features(self) -> Features:
        """`Feature.DURABLE`: it is a spool, and what was put is there after a crash."""

    def put(self, records: Sequence[NewRecord]) -> int:
        """Take them, and give the number of the first; the others follow. When it returns they are kept as well as this
        buffer can. Raises BufferFullError, and takes none, when they do not fit."""

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[Buffered]:
        """The records behind number `after` (-1: from the first that is not committed), without removing them; at least
        one if there is one."""

    def commit(self, through: int) -> None:
        """Those up to this number are acknowledged, and are not given again, also not after a crash; but a crash right
        after it may forget the newest commits."""

    def drop(self, count: int, after: int = -1) -> Sequence[Buffered]:
        """Remove the oldest that are not committed, and give them; with `after` the oldest behind this number, as what
        is under way must not be dropped."""

    def __len__(self) -> int:
        """How many are not committed."""

    @property
    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


class Serde(Protocol):
    """Between values and bytes."""

    def encode(self, value: Any, topic: str) -> bytes | None:
        """SerdeError when this value has no form in bytes. None stays None."""

    def decode(self, data: bytes | None, topic: str) -> Any:
        """SerdeError when these bytes are no such value."""


class Clock(Protocol):
    """Time, passed in wherever it matters, so that tests can turn it."""

    def monotonic_s(self) -> float: ...

    def wall_ms(self) -> int: ...

    def sleep(self, duration_s: float) -> None: ...


class TracedCall(Protocol):
    """One call of a handler, as a tracer sees it. The call is made inside of it, as a context manager."""

    def __enter__(self) -> Self:
        """What the handler does from here on, on this thread or in this task, belongs to the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The call has ended. An error that comes by is not held up."""

    def gave(self, record: NewRecord) -> NewRecord:
        """A record that the handler gives: the same, with headers that lead its reader back to this call."""

    def failed(self, error: BaseException, *, again: bool) -> None:
        """The handler raised, and the record will be tried `again`, as far as can be told now, or given up."""


class Tracer(Protocol):
    """Follows records through producers and handlers. Set as `penstock.model.observing.OBSERVED.tracer`.

    It is called where the work is done, for each record: it must be quick, and must not raise.
    """

    def sending(self, record: NewRecord) -> tuple[NewRecord, Callable[[Receipt | BaseException], object]]:
        """A record is about to be sent. Gives the same with the headers that lead its reader back here, and what is to
        be called once: with its receipt when that is settled, or with why it could not even be taken."""

    def handling(self, records: Sequence[Record], *, group: str, handler: str, attempt: int) -> TracedCall:
        """A handler is about to be called, with one record, or with many at once. `group` is "" for a stage."""

    def gave_up(self, letter: DeadLetter) -> None:
        """A record is with the dead letters."""
