"""The extension points. Each is a small Protocol whose docstrings are its contract.

All are synchronous and blocking, and may be called from any thread unless they say otherwise. A backend declares what
it can do in `features`; what it cannot is refused when a program is built. Each kind has a conformance suite in
`penstock.testing.conformance`, which crashes a backend on purpose: run it on your own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from penstock.abc.administration import Admin as Admin
from penstock.abc.administration import CountingSurvey as CountingSurvey
from penstock.abc.administration import GroupAdmin as GroupAdmin
from penstock.abc.administration import HasAdmin as HasAdmin
from penstock.abc.administration import RecordTimes as RecordTimes
from penstock.abc.administration import Survey as Survey
from penstock.abc.channels import Acknowledging as Acknowledging
from penstock.abc.channels import Channel as Channel
from penstock.abc.channels import CountingLosses as CountingLosses
from penstock.abc.channels import RecognisingRepeats as RecognisingRepeats
from penstock.abc.features import Feature as Feature
from penstock.abc.features import Features as Features
from penstock.abc.lineage import Dataset as Dataset
from penstock.abc.lineage import Lineage as Lineage
from penstock.abc.lineage import LineageRun as LineageRun
from penstock.abc.queues import BatchSettling as BatchSettling
from penstock.abc.queues import CountingWaiting as CountingWaiting
from penstock.abc.queues import Delivery as Delivery
from penstock.abc.queues import Extending as Extending
from penstock.abc.queues import Outcome as Outcome
from penstock.abc.queues import Queue as Queue
from penstock.model import Batch as Batch
from penstock.model import Change as Change
from penstock.model import Checkpoint as Checkpoint
from penstock.model import CheckpointKey as CheckpointKey
from penstock.model import DeadLetter as DeadLetter
from penstock.model import DeadLetterFilter as DeadLetterFilter
from penstock.model import Headers as Headers
from penstock.model import HistoryEntry as HistoryEntry
from penstock.model import Lease as Lease
from penstock.model import NewRecord as NewRecord
from penstock.model import Pointer as Pointer
from penstock.model import Position as Position
from penstock.model import Receipt as Receipt
from penstock.model import Record as Record
from penstock.model.administration import ConfigValue as ConfigValue
from penstock.model.administration import GroupDescription as GroupDescription
from penstock.model.administration import GroupMembers as GroupMembers
from penstock.model.administration import GroupSummary as GroupSummary
from penstock.model.administration import Member as Member
from penstock.model.administration import Offsets as Offsets
from penstock.model.administration import PartitionId as PartitionId
from penstock.model.administration import Progress as Progress
from penstock.model.administration import RecordCounts as RecordCounts
from penstock.model.administration import RecordTime as RecordTime
from penstock.model.administration import Span as Span
from penstock.model.administration import TopicSummary as TopicSummary
from penstock.model.checkpoint import Claim as Claim
from penstock.model.checkpoint import Failing as Failing
from penstock.model.checkpoint import Handled as Handled
from penstock.model.checkpoint import Runs as Runs
from penstock.model.checkpoint import Status as Status
from penstock.model.record import TimestampType as TimestampType


@runtime_checkable
class TopicStream(Protocol):
    """One topic of a system that keeps records in order and lets them be read again."""

    @property
    def topic(self) -> str: ...

    @property
    def features(self) -> Features: ...

    def partitions(self) -> Sequence[int]:
        """The partitions there are now, ascending. Their number may grow. Raises UnknownTopicError."""

    def locate(self, partition: int, position: Position) -> Pointer:
        """The pointer at which reading from this position starts: that of a record, or the end of the partition.

        At a time: the first record with this timestamp or a later one, or the end when there is none. At a pointer:
        that pointer, whether or not there is a record. Without `Feature.TIMES`, a position at a time is a ConfigError.
        """

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        """The earliest pointer that can be read, and the end, which is after the last record."""

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        """At most `limit` records from `start` on, as soon as there is one; an empty batch after `wait_s` without any.

        `batch.start` is `start`, and `batch.next` is where the next read continues: after the last record of the batch,
        or further if no records are between. Reading changes nothing: the same read gives the same records until they
        expire. Records that expired before they were read are an OffsetOutOfRangeError, never silently skipped.
        """

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """Append records in this order. One receipt each, settled when the record is stored or was refused.

        Records with one key, or with none and one chosen partition, keep their order, even when some are retried.
        It may return before anything is stored, and blocks while the stream has no room. Prefer a receipt with a
        DeliveryError to raising: then the other records are still appended.
        """

    def close(self) -> None:
        """Settle the receipts of appended records, as far as possible, and release everything."""


@runtime_checkable
class Stream(Protocol):
    """A connected system that keeps records in topics: what opening a URL returns.

    A backend must have these members. It may also have `delete_topic(topic)`, the protocols `HasAdmin`, `HasSender`,
    `HasReader`, `HasCheckpoints`, `Transactional`, `Reachable`, `NamesPointers` and `HasRetention`, and its topics
    `Feeding`, `Browsing`, `Grouping`, `Resharding` and `CountsRecords`. For what it lacks, `penstock.Connection` uses
    `open_topic`, or says which feature is missing.
    """

    @property
    def url(self) -> str:
        """The URL, which may contain a password: the library does not show it."""

    @property
    def features(self) -> Features: ...

    def open_topic(self, topic: str) -> TopicStream:
        """Open a topic, which need not exist yet. The caller closes it."""

    def topics(self) -> Sequence[str]:
        """The names of all topics, without those that the system uses for itself."""

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        """Raises TopicExistsError, InvalidTopicError, ConfigError. `partitions` None: the default of the system."""

    def close(self) -> None: ...


@runtime_checkable
class NamesPointers(Protocol):
    """A stream whose pointers people know in another form than a number, such as `1526919030474-55` in Redis."""

    def pointer_text(self, pointer: Pointer) -> str:
        """The pointer in the system's own form. Pointers between records have one, too."""

    def parse_pointer(self, text: str) -> Pointer:
        """The pointer of such a text. Raises ConfigError, which shows the form, for any other text."""


@runtime_checkable
class HasRetention(Protocol):
    """A stream without `HasAdmin` that removes records by their age."""

    def retention_s(self, topic: str) -> float | None:
        """After how many seconds the system may remove a record of the topic; None: never, or unknown."""


@runtime_checkable
class CountsRecords(Protocol):
    """A topic without `Feature.OFFSETS` that knows how many records it has, without reading them."""

    def record_counts(self, partition: int) -> RecordCounts:
        """Must be cheap: it is called every few seconds. Raises UnknownTopicError."""


@runtime_checkable
class Reachable(Protocol):
    """A stream that is reached over a network, and may be unavailable."""

    problem: str | None
    """Why this connection can no longer reach the stream; None while it can."""

    def check_reachable(self) -> None:
        """Return once the stream has answered. BrokerUnavailableError says what was tried and what to do."""

    def check_there(self, timeout_s: float) -> None:
        """Return once a connection is accepted, however slow the answers. Raises BrokerUnavailableError."""

    def check_usable(self) -> None:
        """Raise BrokerUnavailableError if there is a `problem`."""


class Sender(Protocol):
    """A way to send single records that is faster than `TopicStream.append`. Any thread may use it."""

    @property
    def unacknowledged(self) -> int:
        """How many records have been sent and neither acknowledged nor refused."""

    def send(self, record: NewRecord) -> Receipt:
        """Accept the record, waiting while there is no room. Raises DeliveryError if it cannot be accepted."""

    async def send_async(self, record: NewRecord) -> Receipt:
        """Await `send` while there is no room."""

    def flush(self, timeout_s: float | None) -> None:
        """Return once every record is acknowledged. Raises DeliveryError for failures not seen on a receipt, and
        TimeoutError."""

    def wait_until_settled(self, timeout_s: float | None) -> bool:
        """Wait up to `timeout_s`, and return whether every record is acknowledged or refused."""

    def close(self, timeout_s: float) -> None:
        """Flush and release everything. Records that are not acknowledged after `timeout_s` have failed."""


@runtime_checkable
class HasSender(Protocol):
    """A stream with a sender of its own."""

    def sender(self) -> Sender:
        """The same one each time. It is closed with the stream."""

    def close(self, timeout_s: float | None = None) -> None:
        """Close like `Stream.close`, giving up unacknowledged records after `timeout_s`. Raises like `Sender.flush`."""


@runtime_checkable
class HasReader(Protocol):
    """A stream with a reader of its own."""

    def read(
        self,
        topic: str,
        start: Any,
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
        partitions: Iterable[int] | None,
    ) -> Any:
        """A `penstock.Reader`. `penstock.Connection.read` explains `start`."""


@runtime_checkable
class HasGroupReader(Protocol):
    """A stream with `Feature.GROUPS` that can be read as a member of a group, record by record."""

    def group_reader(
        self,
        group: str,
        topic: str,
        *,
        reset: Literal["earliest", "latest"],
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
    ) -> CommittingReader: ...


class CommittingReader(Iterator[Record], AbstractContextManager["CommittingReader"], Protocol):
    """Iterates over the records of this member's partitions. Asking for the next record marks the last one done.
    Leaving the `with` block commits, unless an error leaves it."""

    @property
    def ready(self) -> int:
        """How many records can be returned without waiting."""

    def commit(self) -> None:
        """Commit what is done, and wait for the acknowledgement."""

    def close(self) -> None:
        """Leave the group. Records that are done and not committed are read again."""


@runtime_checkable
class HasBootstrap(Protocol):
    """A stream that speaks Kafka's protocol."""

    bootstrap: str
    """The address that Kafka's own clients may be given."""


@runtime_checkable
class HasAddress(Protocol):
    """A stream that other processes can reach by another URL while it runs here."""

    def address_url(self) -> str:
        """The URL of what runs now, for processes that must not start it."""


@runtime_checkable
class HasCheckpoints(Protocol):
    """A stream with a default place for the checkpoints of its consumers."""

    def checkpoint_url(self, *, in_stream: bool) -> str:
        """The default URL of checkpoints. `in_stream`: they must be part of the stream's transactions."""


class Transaction(Protocol):
    """A producer with a transactional id. Only the newest producer with the same id may write."""

    def begin(self) -> None: ...

    def produce(self, topic: str, value: bytes | None, key: bytes | None = None, partition: int = -1) -> None: ...

    def append(self, records: Iterable[NewRecord]) -> None:
        """Like `produce`, for records that may have headers and times."""

    def commit(self) -> None:
        """Commit everything since `begin`, or nothing: OvertakenError if a newer producer with the same id exists."""

    def close(self) -> None: ...


@runtime_checkable
class Transactional(Protocol):
    """A stream with `Feature.TRANSACTIONS`."""

    def transactional(self, transactional_id: str, *, timeout_s: float, transaction_timeout_s: float) -> Transaction:
        """Start a producer with this id, and abort what an earlier one left open."""


class Feed(Protocol):
    """Reads several partitions of one topic. Used by one thread, except for `wake`."""

    def add(self, partition: int, start: Pointer) -> None:
        """Start to read a partition, or continue elsewhere in it."""

    def remove(self, partition: int) -> None:
        """Stop reading a partition."""

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        """At most `limit` records, as soon as there is one; nothing after `wait_s`.

        Each batch of a partition starts where the last one ended. Raises OffsetOutOfRangeError as `TopicStream.read`
        does, and removes that `partition`; the others continue.
        """

    def wake(self) -> None:
        """End a waiting `poll` now, or else the next one. Any thread may call it."""

    def close(self) -> None: ...


@runtime_checkable
class Feeding(Protocol):
    """A topic with a faster way to read several partitions than `read`."""

    def feed(self) -> Feed: ...


@runtime_checkable
class Resharding(Protocol):
    """A topic whose partitions may end and be replaced by others, as the shards of Kinesis are.

    Records of one key are in order only for those who finish the replaced partitions first: groups and readers do. A
    replaced partition gets no more records, so its `span` ends where it will always end.
    """

    def parents(self, partition: int) -> Sequence[int]:
        """The partitions that this one has replaced, without those that have no records any more. Most have none."""


Isolation = Literal["committed", "uncommitted"]
"""Whether records of open transactions are read."""


@runtime_checkable
class Browsing(Protocol):
    """A topic with a feed for browsing, which prefetches little, whatever the size of the records."""

    def browse(self, partitions: Iterable[int], isolation: Isolation, fetch_wait_ms: int) -> Feed:
        """`partitions` exist. `fetch_wait_ms` is how long the stream may wait for records before it answers."""


class GroupListener(Protocol):
    """Is told which partitions it owns. Called by a `GroupFeed` inside `poll` and `close`."""

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        """These partitions are assigned. Returns where to start in each.

        Each comes with the lease of its checkpoint if the group works by leases. If the stream keeps the group, it is
        None, and the listener claims the lease.
        """

    def revoked(self, partitions: Sequence[int]) -> None:
        """Other members get these when this returns: finish or drop what is in flight, and save. Return soon."""

    def lost(self, partitions: Sequence[int]) -> None:
        """Other members may already have these: stop, and write nothing."""


class GroupFeed(Feed, Protocol):
    """A feed of the partitions that a group assigns to this member. Its user does not call `add` and `remove`."""

    def seek(self, partition: int, start: Pointer) -> None:
        """Continue elsewhere in an assigned partition."""

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        """Show the group's progress in the stream, if it keeps such offsets. Checkpoints decide, not these."""


@runtime_checkable
class StoreCheckingFeed(Protocol):
    """A `GroupFeed` that notices members whose checkpoints are in files of different hosts."""

    def checkpoints_in(self, place: str, has_checkpoint: Callable[[int], bool]) -> None:
        """Say, before the first `poll`, in which file this member keeps its checkpoints, and whether one is there.

        `poll` then raises ConfigError for a partition that other members have handled with another file, of which this
        one has no checkpoint, unless it begins where they ended.
        """


@runtime_checkable
class Grouping(Protocol):
    """A topic of a stream with `Feature.GROUPS`."""

    def group_feed(
        self, group: str, listener: GroupListener, *, member: str, assignor: str, session_timeout_s: float
    ) -> GroupFeed:
        """Join a group. `member` is the displayed name; `assignor` is range, roundrobin, sticky or cooperative."""


@runtime_checkable
class HostStore(Protocol):
    """A `CheckpointStore` in files of this host, which members of the group on other hosts do not see."""

    @property
    def host_path(self) -> str:
        """The absolute path of the file or folder."""


class CheckpointStore(Protocol):
    """Keeps the checkpoints of groups, and the leases that say who may write them.

    Every write is an atomic compare-and-set. The store does not judge time: members decide that an owner is dead by
    watching the beat of its lease with their own clocks. What was saved survives a kill -9 of the client. Raises
    StoreUnavailableError if the store cannot be reached: the caller retries.
    """

    @property
    def features(self) -> Features: ...

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        """Become the owner of a lease, if it is still as it was `seen`; None: if there is none.

        Returns the new lease, with the next epoch and beat 0, or None if it has changed. The owner may claim its lease
        again, and gets the next epoch, too. From then on, writes with the old epoch are refused.
        """

    def renew(self, lease: Lease) -> Lease:
        """The same lease with its beat one higher. Raises FencedError if its owner or epoch has changed."""

    def release(self, lease: Lease) -> None:
        """Give up a lease, which keeps its epoch. No effect if it has another owner."""

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        """All leases of a group whose names start with `prefix`, including released ones, by name.

        Members of large groups ask often: the others should not leave the store, where it can filter.
        """

    def forget_lease(self, lease: Lease) -> None:
        """Remove a lease if it is unchanged. For dead members of a group, never for partitions."""

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        """The last saved checkpoint. Raises CorruptCheckpointError if it is damaged."""

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """Save everything in the change atomically. The set of finished records may be of any size.

        Raises FencedError, and saves nothing, unless `lease`, the one named `key.lease_name`, still has this owner and
        epoch (its beat does not matter).
        """

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        """All checkpoints of a group."""

    def groups(self) -> Sequence[str]:
        """The groups that have leases or checkpoints here."""

    def forget(self, group: str) -> None:
        """Remove everything about a group. Raises GroupError if one of its leases is held."""

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        """The keyed state of a partition, as of its checkpoint. With `Feature.STATE`."""

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        """Which of these idempotency keys are remembered. With `Feature.DEDUPLICATION`."""

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        """The history of the record at `pointer`, or of the partition: the newest `limit` entries, oldest first. With
        `Feature.HISTORY`."""

    def close(self) -> None: ...


class StoreTransaction(Protocol):
    """A transaction in a database that also keeps checkpoints."""

    @property
    def connection(self) -> Any:
        """The database's own connection, inside the transaction. The user must not commit or roll back."""

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """Save like `CheckpointStore.save`, effective when the transaction commits."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Roll back only what is done inside, if the block ends with an error."""


@runtime_checkable
class PipelinedTransaction(Protocol):
    """A `StoreTransaction` whose statements need not wait for each other's results."""

    def send_ahead(self) -> bool:
        """Do not wait for the results of statements from now on, unless the user asks for them.

        False if it cannot, and waits as before. `save` and the end of the transaction wait for all of them.
        """

    def catch_up(self) -> None:
        """Wait for everything that was sent ahead. Raises its first error, even if a user has caught it."""


@runtime_checkable
class TransactionalStore(Protocol):
    """A checkpoint store with `Feature.TRANSACTIONS`: effects and checkpoint in one SQL transaction."""

    def transaction(self) -> AbstractContextManager[StoreTransaction]:
        """Commit at the end of the block, or roll back after an error.

        Each thread may have one at a time; a store with a single writer makes them wait for each other.
        """


class DeadLetters(Protocol):
    """Stores records that were given up."""

    @property
    def features(self) -> Features: ...

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Store letters as waiting, durably. Texts may be cut, but never the record.

        A letter with an existing id replaces it in its place, if its `last_ms` is newer, with the higher number of
        `redrives`. A letter that was taken or redriven is waiting again; a discarded one only if the new one is newer.
        """

    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """At most `limit` letters in the order of their first `put`. `after` is the id of the last one seen, whether
        or not it still matches. Raises ConfigError if there is no such letter."""

    def count(self, which: DeadLetterFilter) -> int: ...

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        """Mark letters that are waiting, or taken by anyone, as taken by `taker`, and return them in order."""

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        """Mark taken letters as REDRIVEN, with `redrives` one higher, or as WAITING again. No effect on letters that
        `taker` no longer has: another one took them, or they were put again."""

    def discard(self, ids: Collection[str]) -> int:
        """Mark letters as DISCARDED, whatever they were. Returns how many were not before."""

    def close(self) -> None: ...


class Buffered(Protocol):
    """A record in a buffer, with its number there."""

    @property
    def sequence(self) -> int: ...

    @property
    def record(self) -> NewRecord: ...


class Buffer(Protocol):
    """The records of a producer that the stream has not acknowledged: first in, first out."""

    @property
    def features(self) -> Features:
        """`Feature.DURABLE`: it is a spool, whose records survive a crash."""

    def put(self, records: Sequence[NewRecord]) -> int:
        """Store records as safely as this buffer can, and return the number of the first; the others follow. Raises
        BufferFullError, and stores none, if they do not fit."""

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[Buffered]:
        """The records after number `after` (-1: from the first that is not committed), without removing them; at
        least one if there is one."""

    def commit(self, through: int) -> None:
        """Records up to this number are acknowledged, and not returned again. A crash may lose the newest commits."""

    def drop(self, count: int, after: int = -1) -> Sequence[Buffered]:
        """Remove and return the oldest records that are not committed; with `after`, the oldest after this number,
        because records in flight must not be dropped."""

    def __len__(self) -> int:
        """How many records are not committed."""

    @property
    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


class Serde(Protocol):
    """Encodes values as bytes, and decodes them. None stays None."""

    def encode(self, value: Any, topic: str) -> bytes | None:
        """Raises SerdeError if the value cannot be encoded."""

    def decode(self, data: bytes | None, topic: str) -> Any:
        """Raises SerdeError if the bytes cannot be decoded."""


class Clock(Protocol):
    """A clock, passed in so that tests can control time."""

    def monotonic_s(self) -> float: ...

    def wall_ms(self) -> int: ...

    def sleep(self, duration_s: float) -> None: ...


class TracedCall(Protocol):
    """One traced call of a handler, which runs inside this context manager."""

    def __enter__(self) -> Self:
        """From here on, what this thread or task does belongs to the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The call has ended. Errors are not suppressed."""

    def gave(self, record: NewRecord) -> NewRecord:
        """A record that the handler returned, with headers that link its reader to this call."""

    def failed(self, error: BaseException, *, again: bool) -> None:
        """The handler raised. The record is probably retried if `again`, else given up."""


class Tracer(Protocol):
    """Follows records through producers and handlers. Set as `penstock.model.observing.OBSERVED.tracer`.

    It is called for each record on the hot path: it must be fast, and must not raise.
    """

    def sending(self, record: NewRecord) -> tuple[NewRecord, Callable[[Receipt | BaseException], object]]:
        """A record is about to be sent. Returns it with headers that link its reader to this send, and a function to
        call once, with the settled receipt or with the error that prevented sending."""

    def handling(self, records: Sequence[Record], *, group: str, handler: str, attempt: int) -> TracedCall:
        """A handler is about to be called with one or many records. `group` is "" for a stage."""

    def gave_up(self, letter: DeadLetter) -> None:
        """A record became a dead letter."""
