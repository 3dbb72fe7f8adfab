"""One topic in NATS JetStream, as `abc.TopicStream`."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    OffsetOutOfRangeError,
    PenstockError,
)
from penstock.model import Batch, NewRecord, Pointer, Receipt, Record
from penstock.streams.adapting.append_queue import Appended, AppendQueue, Attempt
from penstock.streams.adapting.stream_base import PARTITIONED_LOG, TopicBase, check_limit, chosen_partition
from penstock.streams.nats.client import (
    Answers,
    Inbox,
    NatsApiError,
    NatsClient,
    NatsConnection,
    Pulled,
    Request,
    new_name,
)
from penstock.streams.nats.messages import headers_of, message_id, place_of, record_of
from penstock.streams.nats.settings import NatsSettings
from penstock.streams.nats.topics import Layout, NatsTopic, StreamState

FEATURES: Final[Features] = PARTITIONED_LOG | {Feature.OFFSETS, Feature.IDEMPOTENCE}
BLOCK_S: Final = 1.0
"""The longest time for which the server is asked to hold an answer back."""
_BATCH_BYTES: Final = 32 << 20
"""About how much one read fetches, by the average size of messages."""
_READERS: Final = 4
"""How many places in one partition are kept open for the next read."""
_IDLE_S: Final = 60
"""After how long the server forgets a consumer that nobody reads from."""
_NS: Final = 1_000_000_000
_NOT_FOUND: Final = 10037
_TRIES: Final = 3


@dataclass(slots=True, eq=False)
class _Reader:
    """A consumer of JetStream, at a place in a partition."""

    link: NatsConnection
    inbox: Inbox
    name: str
    next: Pointer
    end: Pointer
    """The end of the partition when the consumer was created."""
    batch: int
    """The most messages to fetch at once."""
    is_new: bool = True


class NatsTopicStream(TopicBase):
    """A topic of `NatsBackend`."""

    features = FEATURES

    def __init__(self, topic: str, client: NatsClient, settings: NatsSettings) -> None:
        super().__init__(topic)
        self._client = client
        self._settings = settings
        self._place = NatsTopic(topic, client, settings)
        self._readers: dict[int, list[_Reader]] = {}
        """By partition. Used in the event loop only."""
        self._layout: Layout | None = None
        self._queue = AppendQueue(topic, self._plan, timeout_s=settings.delivery_timeout_s)
        self._producer = new_name()
        self._numbers = itertools.count()
        self._turns = itertools.count()

    def partitions(self) -> Sequence[int]:
        self._check_open()
        return range(len(self._client.run(self._require()).subjects))

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        self._check_open()
        state = self._client.run(self._place.state(partition))
        return state.first, state.end

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        check_limit(limit)
        self._check_open()
        return self._client.run(self._read(partition, start, limit, time.monotonic() + wait_s), wait_s)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return self._queue.put(records)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._queue.close()
        if any(self._readers.values()):
            with contextlib.suppress(ConnectionClosedError, BrokerUnavailableError):  # they ended with the connection
                self._client.run(self._drop_all())

    async def _require(self) -> Layout:
        layout = await self._place.layout()
        if layout is None:
            raise self._place.unknown()
        self._layout = layout
        return layout

    async def _read(self, partition: int, start: Pointer, limit: int, until_s: float) -> Batch:
        start = max(start, 1)
        layout = self._layout or await self._require()
        for _ in range(_TRIES):
            reader = await self._reader_at(partition, start)
            try:
                pulled = await self._pull_until(partition, reader, limit, until_s)
                if pulled.messages or not _is_gone(pulled):
                    return await self._batch(partition, start, layout, reader, pulled.messages)
            finally:
                if reader not in self._readers[partition]:
                    await self._drop(partition, reader)
            self._layout = None  # the consumer is not there any more, and perhaps the topic
            layout = await self._require()
        raise BrokerUnavailableError(f"{self._client.where} removes consumers of {self.topic!r} while they are read")

    async def _pull_until(self, partition: int, reader: _Reader, limit: int, until_s: float) -> Pulled:
        """The messages that are there. If there are none, the first that arrives before `until_s`."""
        pulled = await self._pull(partition, reader, min(limit, reader.batch), None)
        while not pulled.messages and not _is_gone(pulled) and (left_s := until_s - time.monotonic()) > 0:
            self._check_open()
            pulled = await self._pull(partition, reader, 1, min(left_s, BLOCK_S))
        return pulled

    async def _reader_at(self, partition: int, start: Pointer) -> _Reader:
        """A consumer that goes on at this place. OffsetOutOfRangeError if it is gone, or not there yet."""
        link = await self._client.link()
        readers = self._readers[partition] = [each for each in self._readers.get(partition, ()) if each.link is link]
        for reader in readers:
            if reader.next == start:
                readers.remove(reader)
                return reader
        state = await self._place.state(partition)
        if not state.first <= start <= state.end:
            raise self._out_of_range(partition, start, state)
        where = {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        return await self._new_reader(link, partition, start, state, where)

    async def _new_reader(
        self, link: NatsConnection, partition: int, start: Pointer, state: StreamState, where: dict[str, Any]
    ) -> _Reader:
        name = new_name()
        await self._create(partition, name, where)
        batch = max(1, _BATCH_BYTES // max(1, state.average_bytes))
        return _Reader(link, await link.open_inbox(), name, start, state.end, batch)

    async def _create(self, partition: int, name: str, where: dict[str, Any]) -> None:
        """A consumer that the server forgets by itself."""
        stream = self._place.stream(partition)
        config = {
            **where,
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": _IDLE_S * _NS,
            "mem_storage": True,
            "num_replicas": 1,
            "max_waiting": 8,
        }
        try:
            request = {"stream_name": stream, "config": config, "action": "create"}
            await self._client.api(f"CONSUMER.CREATE.{stream}.{name}", request)
        except NatsApiError as error:
            raise self._place.translated(error, partition) from error

    async def _pull(self, partition: int, reader: _Reader, count: int, wait_s: float | None) -> Pulled:
        """The messages that are there, or the first that arrives within `wait_s`."""
        request: dict[str, Any] = {"batch": count, "no_wait": True}
        if wait_s is not None:
            request = {"batch": count, "expires": max(1_000_000, round(wait_s * _NS))}
        pulled = Pulled(count)
        subject = f"{self._client.prefix}.CONSUMER.MSG.NEXT.{self._place.stream(partition)}.{reader.name}"
        payload = json.dumps(request).encode()
        await reader.link.pull(reader.inbox, subject, payload, pulled, (wait_s or 0.0) + self._settings.timeout_s)
        return pulled

    async def _batch(
        self, partition: int, start: Pointer, layout: Layout, reader: _Reader, messages: Sequence[Any]
    ) -> Batch:
        """A batch of the messages up to the first one that is missing between them."""
        subject = layout.subjects[partition] if partition < len(layout.subjects) else ""
        records: list[Record] = []
        following = start
        for message in messages:
            sequence, time_ns = place_of(message.reply)
            if sequence != following and not await self._is_deleted(partition, start, following, bool(records)):
                return Batch(self.topic, partition, start, following, records)
            records.append(record_of(self.topic, partition, subject, message, sequence, time_ns))
            following = sequence + 1
        if not records and reader.is_new:
            following = max(start, reader.end)  # the consumer has looked at everything up to there
        reader.is_new = False
        reader.next = following
        await self._keep(partition, reader)
        return Batch(self.topic, partition, start, following, records)

    async def _is_deleted(self, partition: int, start: Pointer, missing: Pointer, has_records: bool) -> bool:
        """Whether a message that did not come was deleted alone. One that expired is an error, unless there are records
        before it: then the next read raises it."""
        state = await self._place.state(partition)
        if missing < state.first:
            if has_records:
                return False
            raise self._out_of_range(partition, start, state)
        try:
            await self._client.api(f"STREAM.MSG.GET.{self._place.stream(partition)}", {"seq": missing})
        except NatsApiError as error:
            if error.err_code == _NOT_FOUND:
                return True
            raise
        if has_records:
            return False
        raise BrokerUnavailableError(f"{self._client.where}: message {missing} of {self.topic!r} was lost on its way")

    async def _keep(self, partition: int, reader: _Reader) -> None:
        """Keep a consumer for the next read, and delete the oldest one that was kept."""
        readers = self._readers[partition]
        readers.append(reader)
        if len(readers) > _READERS:
            await self._drop(partition, readers.pop(0))

    async def _drop(self, partition: int, reader: _Reader) -> None:
        delete = f"{self._client.prefix}.CONSUMER.DELETE.{self._place.stream(partition)}.{reader.name}"
        await reader.link.drop(reader.inbox, delete)

    async def _drop_all(self) -> None:
        for partition, readers in self._readers.items():
            while readers:
                await self._drop(partition, readers.pop())

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        self._check_open()
        return self._client.run(self._find_time(partition, time_ms))

    async def _find_time(self, partition: int, time_ms: int) -> Pointer:
        state = await self._place.state(partition)
        try:
            moment = datetime.datetime.fromtimestamp(max(0, time_ms) / 1000, datetime.UTC)
        except (OverflowError, OSError, ValueError):
            return state.end
        moment = moment.replace(microsecond=max(0, time_ms) % 1000 * 1000)
        where = {"deliver_policy": "by_start_time", "opt_start_time": moment.isoformat().replace("+00:00", "Z")}
        reader = await self._new_reader(await self._client.link(), partition, 0, state, where)
        pulled = await self._pull(partition, reader, 1, None)
        await self._drop(partition, reader)
        return place_of(pulled.messages[0].reply)[0] if pulled.messages else state.end

    def _out_of_range(self, partition: int, start: Pointer, state: StreamState) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(f"{self.topic}-{partition}", start, state.first, state.end)

    def _plan(self, batch: Sequence[Appended]) -> Attempt:
        turn = next(self._turns)
        numbered = [(appended, message_id(self._producer, next(self._numbers))) for appended in batch]
        began_s = time.monotonic()
        sent = False

        def attempt() -> None:
            nonlocal sent
            self._layout = self._layout or self._client.run(self._place.provided())
            layout = self._layout
            if sent and time.monotonic() - began_s > layout.duplicates_s:
                raise DeliveryError(
                    f"{self._client.where}: records for {self.topic!r} were not acknowledged within "
                    f"{layout.duplicates_s:g} s, for how long message ids are remembered: they may be stored or not"
                )
            rest = [each for each in numbered if not each[0].receipt.done]
            for first in range(0, len(rest), self._settings.max_in_flight):
                sent = True
                self._send(layout, rest[first : first + self._settings.max_in_flight], turn)

        return attempt

    def _send(self, layout: Layout, batch: Sequence[tuple[Appended, str]], turn: int) -> None:
        """Publish records and settle their receipts. BrokerUnavailableError if some are not acknowledged."""
        limit = self._client.run(self._max_payload())
        requests: list[Request] = []
        sent: list[tuple[Appended, int]] = []
        for appended, id in batch:
            record = appended.record
            partition = chosen_partition(record, turn, len(layout.subjects))
            headers = headers_of(record, id)
            size = len(record.value or b"") + sum(len(name) + len(text) + 4 for name, text in headers.items()) + 12
            if not 0 <= partition < len(layout.subjects):
                refusal = f"topic {self.topic!r} has no partition {partition}: it has {len(layout.subjects)}"
            elif size > limit:
                refusal = (
                    f"a record for {self.topic!r} has {size} bytes, more than max_payload of the server, {limit}: "
                    "raise it, or keep large values elsewhere"
                )
            else:
                requests.append((layout.subjects[partition], record.value or b"", headers))
                sent.append((appended, partition))
                continue
            appended.receipt.settle(partition, -1, DeliveryError(refusal))
        if requests:
            self._settle(sent, self._client.run(self._publish(requests)))

    async def _max_payload(self) -> int:
        return int((await self._client.link()).nats.max_payload)

    async def _publish(self, requests: Sequence[Request]) -> Answers:
        link = await self._client.link()
        answers = Answers(len(requests))
        try:
            await link.ask(requests, answers, self._settings.timeout_s)
        except BrokerUnavailableError:
            if answers.missing == len(requests):
                raise
        return answers

    def _settle(self, sent: Sequence[tuple[Appended, int]], answers: Answers) -> None:
        problem: PenstockError | None = None
        for (appended, partition), message in zip(sent, answers.messages, strict=True):
            if message is None:
                problem = problem or BrokerUnavailableError(f"{self._client.where} did not acknowledge all records")
                continue
            if message.headers and message.headers.get("Status") == "503":
                self._layout = None  # nobody stores this subject: look again whether the topic is there
                problem = BrokerUnavailableError(f"{self._client.where}: topic {self.topic!r} is not there (any more)")
                continue
            answer = json.loads(message.data)
            if "error" not in answer:
                appended.receipt.settle(partition, int(answer["seq"]))
                continue
            error = self._client.refusal(answer["error"])
            if isinstance(error, BrokerUnavailableError):
                problem = error
            else:
                appended.receipt.settle(partition, -1, DeliveryError(str(error)))
        if problem is not None:
            raise problem

    def _pointer_of(self, text: str) -> Pointer:
        if not (text.isdecimal() and text.isascii()):
            raise ConfigError(f"{text!r} is not a sequence number of NATS: they are whole numbers from 1 on")
        return int(text)


def _is_gone(pulled: Pulled) -> bool:
    """Whether the consumer is not there any more: 404 without messages is that there are none, 408 that time is up."""
    return pulled.status == "503" or (pulled.status == "409" and "deleted" in pulled.description.lower())
