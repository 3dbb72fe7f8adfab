"""One Kinesis stream as `abc.TopicStream`: shards are read by iterators, at sequence numbers."""

from __future__ import annotations

import datetime
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.abc import Features
from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt, Record
from penstock.streams.adapting.aws import AwsClient, RefusedError, ThrottledError, pause_s
from penstock.streams.adapting.stream_base import PARTITIONED_LOG, TopicBase, check_limit
from penstock.streams.kinesis.encoding import arrival_ms, decode
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.shards import Shard, Shards
from penstock.streams.kinesis.writer import RecordWriter

FEATURES: Final[Features] = PARTITIONED_LOG
"""No IDEMPOTENCE: a request whose answer was lost is sent again, and may have been stored the first time."""

MOST_AT_ONCE: Final = 10_000
READ_AHEAD: Final = 1_000
"""How many records a request asks for at least: a shard allows five requests a second, whatever their size."""
CURSORS: Final = 64
"""How many places are kept open, so that reading goes on there without a new iterator."""
ITERATOR_S: Final = 280.0
"""How long an iterator is used: Kinesis lets it expire after five minutes."""
LOOK_BACK_S: Final = (10.0, 300.0, 3600.0 * 6)
"""How far back to look for the last record of a shard, before all of it is read."""
NO_SUCH_NUMBER: Final = frozenset({"InvalidArgumentException", "ResourceNotFoundException"})


@dataclass(slots=True)
class _Cursor:
    """A place in a shard at which reading goes on."""

    pointer: Pointer
    iterator: str | None
    """None: the shard has ended."""
    made_s: float
    is_proven: bool = False
    """Whether it is known that no record between `pointer` and the first one that comes has expired."""
    ahead: list[Record] = field(default_factory=list)
    """What was read and not asked for yet."""


@dataclass(slots=True)
class _Page:
    records: list[dict[str, Any]]
    iterator: str | None
    behind_ms: int


class KinesisTopic(TopicBase):
    """A topic of `KinesisStream`. The stream is looked up when it is used, so it need not exist before.

    Kinesis has no numbers between those of records, so a place after a record is found by reading that record again.
    If it has expired, records after it may have, too, and nobody can tell: that is an OffsetOutOfRangeError.
    """

    features = FEATURES

    def __init__(self, topic: str, client: AwsClient, settings: KinesisSettings) -> None:
        super().__init__(topic)
        self._client = client
        self._shards = Shards(client, topic, settings.retry_s)
        self._writer = RecordWriter(client, topic, self._shards, settings)
        self._patience_s = settings.retry_s
        self._read_interval_s = settings.read_interval_s
        self._lock = threading.Lock()
        self._cursors: OrderedDict[tuple[int, Pointer], _Cursor] = OrderedDict()
        self._asked_s: dict[int, float] = {}
        """When each shard may be read next, by `read_interval_s`."""
        self._closing = threading.Event()

    def partitions(self) -> Sequence[int]:
        """The shards that have records, or may get some: ended ones stay until their records have expired."""
        self._check_open()
        return sorted(self._shards.refresh())

    def parents(self, partition: int) -> Sequence[int]:
        """`abc.Resharding`: the shards from which this one was split or merged."""
        self._check_open()
        return self._shards.parents(partition)

    def locate(self, partition: int, position: Position) -> Pointer:
        """Each bound of a shard is found by reading, so the other one is not looked for."""
        shard = self._shard(partition)
        match position.kind:
            case PositionKind.EARLIEST:
                return self._first(shard, 0, {"ShardIteratorType": "TRIM_HORIZON"})
            case PositionKind.LATEST:
                return self._end(shard)
            case PositionKind.POINTER:
                return self._pointer_of(position.pointer)
            case PositionKind.TIME:
                return self._at_time(partition, position.time_ms)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        first, end = self.locate(partition, Position.EARLIEST), self._end(self._shard(partition))
        return first, max(first, end)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        """Records from `start` on. At least one request is made, as soon as `read_interval_s` allows, unless records
        were read ahead."""
        check_limit(limit)
        until_s = time.monotonic() + wait_s
        shard = self._shard(partition)
        cursor = self._cursor(shard, start)
        while not cursor.ahead and cursor.iterator is not None:  # ends: when the time is over
            self._fetch(shard, cursor, max(limit, READ_AHEAD))
            self._check_open()
            if time.monotonic() >= until_s:
                break
        records = cursor.ahead[:limit]
        del cursor.ahead[:limit]
        following = records[-1].offset + 1 if records else start
        if cursor.iterator is None and not cursor.ahead:
            if shard.is_open:  # as far as was known: it was split or merged since
                shard = self._shards.refresh().get(partition, shard)
            following = max(following, self._end(shard))
            if following == start:
                self._closing.wait(max(0.0, until_s - time.monotonic()))
                self._check_open()
        cursor.pointer = following
        self._keep(partition, cursor)
        return Batch(self.topic, partition, start, following, records)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        self._check_open()
        return self._writer.append(records)

    def close(self) -> None:
        """Wait for the records under way. Who waits in `read` gets a ConnectionClosedError."""
        self._closing.set()
        self._writer.close()
        with self._lock:
            self._cursors.clear()

    def _check_open(self) -> None:
        if self._closing.is_set() or self._client.is_closed:
            raise ConnectionClosedError(f"the topic {self.topic!r} is closed: open it again")

    def _shard(self, partition: int) -> Shard:
        self._check_open()
        return self._shards.get(partition)

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        shard = self._shard(partition)
        return self._end(shard) if time_ms > time.time() * 1000 else self._first(shard, time_ms, _since(time_ms / 1000))

    def _pointer_of(self, text: str) -> Pointer:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not a sequence number of Kinesis: those are integers") from None

    def _cursor(self, shard: Shard, start: Pointer) -> _Cursor:
        """A cursor for this place: the one that came there, or a new one."""
        with self._lock:
            kept = self._cursors.pop((shard.number, start), None)
        if kept is not None and (kept.ahead or kept.iterator is None or self._is_fresh(kept)):
            return kept
        return self._new_cursor(shard, start)

    def _is_fresh(self, cursor: _Cursor) -> bool:
        return time.monotonic() - cursor.made_s < ITERATOR_S

    def _keep(self, partition: int, cursor: _Cursor) -> None:
        with self._lock:
            self._cursors[partition, cursor.pointer] = cursor
            while len(self._cursors) > CURSORS:
                self._cursors.popitem(last=False)

    def _new_cursor(self, shard: Shard, pointer: Pointer) -> _Cursor:
        now_s = time.monotonic()
        if shard.end is not None and pointer >= shard.end:
            return _Cursor(pointer, None, now_s, is_proven=True)
        if pointer > shard.start:
            # The record before the pointer, or the one at it: an unknown number is refused, or taken by its order.
            for number in (pointer - 1, pointer):
                try:
                    iterator = self._iterator(
                        shard, ShardIteratorType="AT_SEQUENCE_NUMBER", StartingSequenceNumber=str(number)
                    )
                except RefusedError as error:
                    if error.code not in NO_SUCH_NUMBER:
                        raise
                else:
                    return _Cursor(pointer, iterator, now_s)
            self._shards.refresh()  # UnknownTopicError if it is not the number that is missing
        return _Cursor(pointer, self._iterator(shard, ShardIteratorType="TRIM_HORIZON"), now_s)

    def _iterator(self, shard: Shard, **where: Any) -> str:
        answer = self._client.call(
            "get_shard_iterator", self._patience_s, StreamName=self.topic, ShardId=shard.id, **where
        )
        return str(answer["ShardIterator"])

    def _fetch(self, shard: Shard, cursor: _Cursor, limit: int) -> None:
        """Ask for records once."""
        self._await_turn(shard.number)
        assert cursor.iterator is not None
        try:
            page = self._page(cursor.iterator, limit)
        except ThrottledError:
            self._closing.wait(max(self._read_interval_s, pause_s(2)))
            return
        except RefusedError as error:
            if error.code != "ExpiredIteratorException":
                raise
            renewed = self._new_cursor(shard, cursor.pointer)
            cursor.iterator, cursor.made_s, cursor.is_proven = renewed.iterator, renewed.made_s, renewed.is_proven
            return
        cursor.iterator, cursor.made_s = page.iterator, time.monotonic()
        if page.records:
            self._prove(shard, cursor, int(page.records[0]["SequenceNumber"]))
        for fields in page.records:
            number = int(fields["SequenceNumber"])
            if number >= cursor.pointer:
                cursor.ahead.append(self._record(shard.number, number, fields))

    def _page(self, iterator: str, limit: int, patience_s: float = 0.0) -> _Page:
        answer = self._client.call("get_records", patience_s, ShardIterator=iterator, Limit=min(limit, MOST_AT_ONCE))
        return _Page(answer["Records"], answer.get("NextShardIterator"), answer.get("MillisBehindLatest") or 0)

    def _await_turn(self, partition: int) -> None:
        """Keep to `read_interval_s` between two requests to one shard, whoever makes them."""
        with self._lock:
            now_s = time.monotonic()
            turn_s = max(now_s, self._asked_s.get(partition, now_s))
            self._asked_s[partition] = turn_s + self._read_interval_s
        self._closing.wait(turn_s - now_s)

    def _prove(self, shard: Shard, cursor: _Cursor, first: Pointer) -> None:
        """Raise OffsetOutOfRangeError if records between the pointer and the first one found may have expired."""
        if cursor.is_proven or first <= cursor.pointer:
            cursor.is_proven = True
            return
        if cursor.pointer <= shard.start and self._is_whole(shard):
            cursor.is_proven = True
            return
        raise OffsetOutOfRangeError(f"{self.topic}-{shard.number}", cursor.pointer, first, max(first, self._end(shard)))

    def _is_whole(self, shard: Shard) -> bool:
        """Whether a shard still has all records that it ever got: it is younger than the retention time."""
        summary = self._client.call("describe_stream_summary", self._patience_s, StreamName=self.topic)
        about = summary["StreamDescriptionSummary"]
        oldest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=about["RetentionPeriodHours"])
        if about["StreamCreationTimestamp"] > oldest:
            return True
        answer = self._client.call(
            "list_shards", self._patience_s, StreamName=self.topic, ShardFilter={"Type": "AT_TRIM_HORIZON"}
        )
        return shard.id not in {each["ShardId"] for each in answer["Shards"]}

    def _record(self, partition: int, number: Pointer, fields: dict[str, Any]) -> Record:
        key, value, headers = decode(fields["PartitionKey"], fields["Data"])
        return Record(self.topic, partition, number, key, value, headers, arrival_ms(fields))

    def _first(self, shard: Shard, time_ms: int, where: dict[str, Any]) -> Pointer:
        """The first record from a time on, or else the end."""
        for page in self._pages(shard, where, 1 if not time_ms else 100):
            for fields in page.records:
                if (arrival_ms(fields) or 0) >= time_ms:
                    return int(fields["SequenceNumber"])
        return self._end(shard)

    def _end(self, shard: Shard) -> Pointer:
        """The pointer after the last record. Kinesis does not report it for open shards, so the last records are
        read."""
        if shard.end is not None:
            return shard.end
        began_s = time.time()
        for back_s in LOOK_BACK_S:
            if (end := self._end_from(shard, began_s, _since(began_s - back_s))) is not None:
                return end
        return self._end_from(shard, began_s, {"ShardIteratorType": "TRIM_HORIZON"}) or shard.start

    def _end_from(self, shard: Shard, began_s: float, where: dict[str, Any]) -> Pointer | None:
        last: dict[str, Any] | None = None
        for page in self._pages(shard, where, MOST_AT_ONCE):
            if page.records:
                last = page.records[-1]
                if (arrival_ms(last) or 0) > began_s * 1000:  # more may come for ever
                    break
        return None if last is None else int(last["SequenceNumber"]) + 1

    def _pages(self, shard: Shard, where: dict[str, Any], limit: int) -> Iterator[_Page]:
        """Pages of records from a place to the current end of the shard."""
        iterator: str | None = self._iterator(shard, **where)
        while iterator is not None:  # ends: with the shard, or when nothing is left to read
            self._await_turn(shard.number)
            self._check_open()
            page = self._page(iterator, limit, self._patience_s)
            yield page
            if not page.behind_ms and len(page.records) < limit:
                return
            iterator = page.iterator

    def __repr__(self) -> str:
        return f"<KinesisTopic {self.topic!r}{' (closed)' if self._closing.is_set() else ''}>"


def _since(time_s: float) -> dict[str, Any]:
    moment = datetime.datetime.fromtimestamp(max(0.0, time_s), datetime.UTC)
    return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": moment}
