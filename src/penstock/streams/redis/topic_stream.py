"""One topic in Redis, as `abc.TopicStream`."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.errors import (
    BrokerUnavailableError,
    DeliveryError,
    OffsetOutOfRangeError,
    StreamError,
    UnknownTopicError,
)
from penstock.model import Batch, NewRecord, Pointer, Receipt
from penstock.model.administration import RecordCounts
from penstock.streams.adapting.append_queue import Appended, AppendQueue, Attempt
from penstock.streams.adapting.stream_base import PARTITIONED_LOG, TopicBase, check_limit, chosen_partition
from penstock.streams.redis import scripts
from penstock.streams.redis.client import BLOCK_S, Command, RedisClient
from penstock.streams.redis.entries import EntryFormat, RedisBatch, id_of, parse_id, pointer_of
from penstock.streams.redis.settings import RedisSettings

FEATURES: Final[Features] = PARTITIONED_LOG | {Feature.IDEMPOTENCE}
_MOST_FIELDS: Final = 3_000
"""How many fields an entry may have: Lua passes no more than 8000 arguments."""
_TIMES_TO_CREATE: Final = 3
"""How often a topic that others delete meanwhile is created for an append."""


@dataclass(slots=True)
class PartitionState:
    """What Redis reports about a partition at one moment."""

    first: Pointer | None
    last: Pointer
    """The highest id that was ever there."""
    added: int
    """How many records were ever added."""
    length: int
    noted: int
    """How many were removed when our trimming removed some last."""
    noted_last: Pointer
    """The last one of those."""

    @property
    def earliest(self) -> Pointer:
        return self.last + 1 if self.first is None else self.first


class TopicKeys:
    """The keys of a topic, and how many partitions it has."""

    def __init__(self, topic: str, client: RedisClient, settings: RedisSettings) -> None:
        self.topic = topic
        self._client = client
        self._settings = settings
        self.base = settings.prefix + topic
        self.count_key = f"{{{self.base}}}:partitions"

    def partition(self, number: int) -> str:
        return self.base if number == 0 else f"{self.base}:{number}"

    def trimmed(self, number: int) -> str:
        return f"{{{self.partition(number)}}}:trimmed"

    def producer(self, number: int, producer: str) -> str:
        return f"{{{self.partition(number)}}}:producer:{producer}"

    def count(self) -> int:
        """The number of partitions; 0 if the topic does not exist."""
        kind, count = self._client.call(("TYPE", self.base), ("GET", self.count_key))
        if kind == b"none":
            return 0
        if kind != b"stream":
            raise StreamError(
                f"{self._client.where}: key {self.base!r} holds a {kind.decode()}, not a stream: choose another topic, "
                "or a prefix"
            )
        return int(count or 1)

    def create(self, partitions: int) -> bool:
        """Whether it was not there before."""
        keys = [self.count_key, *map(self.partition, range(partitions))]
        [created] = self._client.call(("EVAL", scripts.CREATE, len(keys), *keys))
        return bool(created)

    def delete(self) -> bool:
        numbers = range(self.count())
        if not numbers:
            return False
        keys = [key for number in numbers for key in (self.partition(number), self.trimmed(number))]
        self._client.call(("UNLINK", self.count_key, *keys))
        return True

    def unknown(self, partition: int | None = None) -> UnknownTopicError:
        count = self.count()
        if count and partition is not None:
            return UnknownTopicError(
                f"topic {self.topic!r} in {self._client.where} has no partition {partition}: it has {count}, numbered "
                "from 0"
            )
        return UnknownTopicError(
            f"there is no topic {self.topic!r} in {self._client.where}: there is no stream at key {self.base!r}. It is "
            "created by the first record, or with `penstock topics create`"
        )


class RedisTopicStream(TopicBase):
    """A topic of `RedisBackend`."""

    features = FEATURES

    def __init__(self, topic: str, client: RedisClient, settings: RedisSettings) -> None:
        super().__init__(topic)
        self._client = client
        self._settings = settings
        self._keys = TopicKeys(topic, client, settings)
        self._format = EntryFormat(settings.value_field, settings.key_field)
        self._at_end: dict[int, tuple[Pointer, int]] = {}
        """By partition: a pointer that was its end, and how many records had been added by then."""
        self._queue = AppendQueue(topic, self._plan, timeout_s=settings.delivery_timeout_s)
        self._producer = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._turns = itertools.count()
        self._partition_count = 0

    def partitions(self) -> Sequence[int]:
        self._check_open()
        count = self._keys.count()
        if not count:
            raise self._keys.unknown()
        return range(count)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        state = self._state(partition)
        return state.earliest, state.last + 1

    def record_counts(self, partition: int) -> RecordCounts:
        state = self._state(partition)
        return RecordCounts(state.length, state.added)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        check_limit(limit)
        until_s = time.monotonic() + wait_s
        while True:  # ends: when there is a record, or the time is over
            self._check_open()
            batch = self._read_now(partition, start, limit)
            if len(batch):
                return batch
            while (left_s := until_s - time.monotonic()) > 0:
                self._check_open()
                found = self._read_blocking(partition, start, limit, min(left_s, BLOCK_S))
                if found is None:
                    break  # something was removed: only a look at one moment tells whether that matters
                if len(found):
                    return found
            else:
                return batch

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return self._queue.put(records)

    def close(self) -> None:
        self._is_closed = True
        self._queue.close()

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        state = self._state(partition)
        since = f"{max(0, time_ms)}-0"
        [found] = self._client.call(("XRANGE", self._keys.partition(partition), since, "+", "COUNT", 1))
        return pointer_of(found[0][0]) if found else state.last + 1

    def _pointer_of(self, text: str) -> Pointer:
        return parse_id(text)

    def _read_now(self, partition: int, start: Pointer, limit: int) -> Batch:
        """The records that are there now. They and the state of the partition are read at the same moment."""
        commands = (("MULTI",), self._xread(partition, start, limit), self._state_command(partition), ("EXEC",))
        [*_, answers] = self._client.call(*commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._client.translated(answer)
        state = self._parse_state(partition, answers[1])
        if self._missed(partition, start, state):
            raise self._out_of_range(partition, start, state)
        batch = self._batch(partition, start, answers[0])
        if len(batch) < limit:
            batch.next = max(state.last + 1, start)
            self._at_end[partition] = (batch.next, state.added)
        return batch

    def _read_blocking(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch | None:
        """The records that arrive within `wait_s`; None if some may have been removed before they were read."""
        block = ("BLOCK", max(1, round(wait_s * 1000)))
        found, answer = self._client.call(self._xread(partition, start, limit, *block), self._state_command(partition))
        if answer is None or self._missed(partition, start, self._parse_state(partition, answer)):
            return None
        return self._batch(partition, start, found)

    def _xread(self, partition: int, start: Pointer, limit: int, *block: str | int) -> Command:
        after = id_of(max(0, start - 1))
        return ("XREAD", "COUNT", limit, *block, "STREAMS", self._keys.partition(partition), after)

    def _batch(self, partition: int, start: Pointer, found: Any) -> RedisBatch:
        return RedisBatch(self.topic, partition, start, found[0][1] if found else (), self._format)

    def _missed(self, partition: int, start: Pointer, state: PartitionState) -> bool:
        """Whether records from `start` on were removed, or `start` is beyond the end.

        Redis does not say what XTRIM has removed. Our own trimming notes it. If others trim, a reader that was at the
        end counts what was added since; any other reader behind the first record is told that it missed something, as
        it may have.
        """
        if start > state.last + 1:
            return True
        removed = state.added - state.length
        if start >= state.earliest or removed <= 0:
            return False
        if state.first is None:
            return True
        if removed == state.noted:
            return start <= state.noted_last
        pointer, added = self._at_end.get(partition, (-1, 0))
        return not (pointer == start and state.length >= state.added - added)

    def _out_of_range(self, partition: int, start: Pointer, state: PartitionState) -> OffsetOutOfRangeError:
        name = f"{self.topic}-{partition}"
        error = OffsetOutOfRangeError(name, start, state.earliest, state.last + 1)
        what = "may have been trimmed" if start <= state.last else "has not been written yet"
        error.args = (
            f"{self._client.where}: what follows {id_of(start)} in {name} {what}; it holds {id_of(state.earliest)} to "
            f"{id_of(state.last)}. Choose earliest, latest, or an id in between; keep records longer with max_length "
            "or max_age_s",
        )
        return error

    def _state(self, partition: int) -> PartitionState:
        self._check_open()
        [answer] = self._client.call(self._state_command(partition))
        return self._parse_state(partition, answer)

    def _state_command(self, partition: int) -> Command:
        return ("EVAL", scripts.STATE, 2, self._keys.partition(partition), self._keys.trimmed(partition))

    def _parse_state(self, partition: int, answer: Any) -> PartitionState:
        if answer is None or partition < 0:
            raise self._keys.unknown(partition)
        first, last, added, length, noted = answer
        if added == b"":
            raise StreamError(f"{self._client.where} is too old for redis: URLs: use Redis 7.0 or newer, or Valkey")
        removed, _, noted_last = noted.partition(b" ")
        return PartitionState(
            first=pointer_of(first) if first else None,
            last=pointer_of(last),
            added=int(added),
            length=int(length),
            noted=int(removed or -1),
            noted_last=pointer_of(noted_last) if noted_last else 0,
        )

    def _plan(self, batch: Sequence[Appended]) -> Attempt:
        groups: dict[int, _Group] = {}
        turn = next(self._turns)

        def attempt() -> None:
            for _ in range(_TIMES_TO_CREATE):
                if not groups:
                    self._group(batch, turn, groups)
                if self._send([group for group in groups.values() if not group.is_settled]):
                    return
                self._partition_count = 0
                groups.clear()
            raise BrokerUnavailableError(f"topic {self.topic!r} in {self._client.where} is being deleted")

        return attempt

    def _group(self, batch: Sequence[Appended], turn: int, groups: dict[int, _Group]) -> None:
        """Divide a batch by partitions. What cannot be stored is refused."""
        if not self._partition_count:
            self._partition_count = self._keys.count() or self._created()
        count = self._partition_count
        for appended in batch:
            if appended.receipt.done:
                continue
            record = appended.record
            number = chosen_partition(record, turn, count)
            fields = self._format.fields(record)
            refusal = self._refusal(number, count, fields)
            if refusal is not None:
                appended.receipt.settle(number, -1, DeliveryError(refusal))
                continue
            group = groups.get(number)
            if group is None:
                group = groups[number] = _Group(number, next(self._numbers), [], [])
            group.receipts.append(appended.receipt)
            group.arguments.append(b"%d" % len(fields))
            group.arguments += fields

    def _refusal(self, number: int, count: int, fields: Sequence[bytes]) -> str | None:
        """The error of a record that cannot be stored."""
        if not 0 <= number < count:
            return f"topic {self.topic!r} has no partition {number}: it has {count}, numbered from 0"
        if len(fields) > 2 * _MOST_FIELDS:
            return f"a record for {self.topic!r} has {len(fields) // 2} headers, more than {_MOST_FIELDS}"
        size = sum(map(len, fields))
        if size > self._settings.max_record_bytes:
            return (
                f"a record for {self.topic!r} has {size} bytes, more than max_record_bytes="
                f"{self._settings.max_record_bytes}: raise it, or keep large values elsewhere"
            )
        return None

    def _created(self) -> int:
        self._keys.create(self._settings.partitions)
        return self._keys.count() or self._settings.partitions

    def _send(self, groups: Sequence[_Group]) -> bool:
        """Store groups and settle their receipts. False if a partition is not there any more."""
        if not groups:
            return True
        settings = self._settings
        commands: list[Command] = [self._append_command(group) for group in groups]
        if settings.wait_replicas:
            commands.append(("WAIT", settings.wait_replicas, round(settings.timeout_s * 1000)))
        answers = self._client.pipeline(commands)
        if settings.wait_replicas:
            self._check_replicas(answers[-1])
        all_there = True
        problem: BrokerUnavailableError | None = None
        for group, answer in zip(groups, answers, strict=False):
            if answer is None:
                all_there = False
            elif isinstance(answer, Exception):
                error = self._client.translated(answer)
                if isinstance(error, BrokerUnavailableError):
                    problem = error
                else:
                    group.fail(DeliveryError(str(error)))
            else:
                group.settle(pointer_of(answer))
        if problem is not None:
            raise problem
        return all_there

    def _check_replicas(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise self._client.translated(answer)
        if answer < self._settings.wait_replicas:
            raise BrokerUnavailableError(
                f"{self._client.where}: {answer} of {self._settings.wait_replicas} replicas confirmed the records "
                f"within {self._settings.timeout_s:g} s. Check the replicas, or lower wait_replicas"
            )

    def _append_command(self, group: _Group) -> Command:
        settings = self._settings
        number, keys = group.partition, self._keys
        remember_s = round(2 * settings.delivery_timeout_s) + 60
        max_age = "" if settings.max_age_s is None else str(round(settings.max_age_s * 1000))
        max_length = "" if settings.max_length is None else str(settings.max_length)
        names = (keys.partition(number), keys.producer(number, self._producer), keys.trimmed(number))
        how = (group.number, remember_s, max_length, max_age)
        return ("EVAL", scripts.APPEND, len(names), *names, *how, *group.arguments)


@dataclass(slots=True)
class _Group:
    """Records of one batch for one partition. It is sent until it is settled, and stored once."""

    partition: int
    number: int
    receipts: list[Receipt]
    arguments: list[bytes]
    is_settled: bool = False

    def settle(self, first: Pointer) -> None:
        self.is_settled = True
        for index, receipt in enumerate(self.receipts):
            receipt.settle(self.partition, first + index)

    def fail(self, error: DeliveryError) -> None:
        self.is_settled = True
        for receipt in self.receipts:
            receipt.settle(self.partition, -1, error)
