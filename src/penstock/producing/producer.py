"""The public `Producer`."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import functools
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, Unpack, overload

from penstock.abc import Buffer, Feature, Stream
from penstock.errors import ConfigError, ConnectionClosedError, DeliveryError, PenstockError, RecordTooLargeError
from penstock.model import NewRecord, Receipt, RecordMetadata, check_topic_name
from penstock.model.closing import AsyncClosing
from penstock.model.observing import OBSERVED, send_traced
from penstock.model.receipt import call_in
from penstock.model.record import LONGEST_TOPIC_NAME
from penstock.model.retry import Retry
from penstock.model.times import check_seconds
from penstock.producing.buffers import RECORD_OVERHEAD_BYTES, ForeignBuffer, MemoryBuffer, size_of
from penstock.producing.choosing import SPOOL_PREFIX, check_guarantees, choose_delivery, open_buffer, open_for_producing
from penstock.producing.counts import ProducerStats
from penstock.producing.engine import Engine
from penstock.producing.partitioners import Partitioner, choose_partitioner
from penstock.producing.settings import ProducerSettings, SpoolFlush, WhenFull
from penstock.producing.spooling import Spool
from penstock.serde import SendOptions, Topic, new_record
from penstock.serde.plain import NewHeaders
from penstock.streams.forks import FORKS
from penstock.streams.options import ConnectOptions

_SLICE_S: Final = 0.05
"""Waits are cut into slices: room may appear between looking and waiting."""


def put_when_full(
    engine: Engine, records: Sequence[NewRecord], receipts: Sequence[Receipt], check_usable: Callable[[], None]
) -> None:
    """Put records that did not fit a moment ago, as `when_full` says. Raises BufferFullError."""
    deadline_s = time.monotonic() + engine.settings.max_block_s
    while not _is_settled(engine, records, receipts):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or engine.pump.is_current_thread():  # a callback would wait for itself
            raise engine.no_room()
        engine.pump.wait_for_news(min(left_s, _SLICE_S))
        check_usable()


async def put_async(
    engine: Engine, records: Sequence[NewRecord], receipts: Sequence[Receipt], check_usable: Callable[[], None]
) -> None:
    """Put records, waiting for room as `put_when_full` does, without blocking the event loop."""
    if await _off_the_loop(engine, functools.partial(engine.try_put, records, receipts)):
        return
    deadline_s = time.monotonic() + engine.settings.max_block_s
    loop = asyncio.get_running_loop()
    while True:  # ends at the deadline
        room = asyncio.Event()
        engine.pump.call_on_room(functools.partial(call_in, loop, room.set))
        if await _off_the_loop(engine, functools.partial(_is_settled, engine, records, receipts)):
            return
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise engine.no_room()
        try:
            await asyncio.wait_for(room.wait(), left_s)
        except TimeoutError:
            continue
        check_usable()


async def _off_the_loop(engine: Engine, put: Callable[[], bool]) -> bool:
    """Run it in a thread if putting waits for the disk."""
    return await asyncio.to_thread(put) if engine.waits_for_disk else put()


def _is_settled(engine: Engine, records: Sequence[NewRecord], receipts: Sequence[Receipt]) -> bool:
    """Do what `when_full` says. False: wait for room and try again."""
    match engine.settings.when_full:
        case "error":
            if engine.try_put(records, receipts):
                return True
            raise engine.no_room()
        case "drop_newest":
            engine.drop_newest(receipts)
            return True
        case "drop_oldest":
            while not engine.try_put(records, receipts):
                if not engine.make_room():
                    return False
            return True
        case "block":
            return engine.try_put(records, receipts)


@dataclass(slots=True)
class Staged:
    """Records sent in an open transaction. They are not in a buffer yet."""

    records: list[NewRecord] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)


class OpenTransactions:
    """The open transaction of each thread and task of one producer."""

    def __init__(self) -> None:
        self.count = 0
        """Open transactions, in all threads."""
        self._lock = threading.Lock()
        self._current: contextvars.ContextVar[Staged | None] = contextvars.ContextVar("transaction", default=None)

    @property
    def current(self) -> Staged | None:
        return self._current.get()

    @contextmanager
    def open(self) -> Iterator[Staged]:
        if self._current.get() is not None:
            raise ConfigError("a transaction is already open: transactions cannot be nested")
        staged = Staged()
        token = self._current.set(staged)
        with self._lock:
            self.count += 1
        try:
            yield staged
        except BaseException as error:
            for receipt in staged.receipts:
                if receipt.done:
                    continue
                receipt.seen = True
                receipt.settle(
                    -1,
                    -1,
                    DeliveryError(
                        f"a record for topic {receipt.topic!r} was not sent: its transaction ended with "
                        f"{type(error).__name__}: {error}"
                    ),
                )
            raise
        finally:
            self._current.reset(token)
            with self._lock:
                self.count -= 1


logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULTS: Final = ProducerSettings()
_EXIT_FLUSH_S: Final = 10.0
"""How long a program that did not close its producer waits at exit for the records in memory."""
_SPOOL_CLOSE_S: Final = 10.0
"""The default timeout of `close` with a spool. What is left is safe, and the next producer delivers it."""


class Producer(AsyncClosing):
    """Sends records to a stream. Create it once, use it from any thread, close it with `close` or a `with` block.

    `stream` is a URL, or a connected stream, which stays open. `client` holds options of `connect`, for a URL. `buffer`
    is "memory", or "spool:FOLDER", with which every record survives this process as soon as `send` returns. The other
    settings are explained in `penstock.producing.settings.ProducerSettings`. Raises ConfigError or GuaranteeError for
    settings that exclude each other.
    """

    def __init__(
        self,
        stream: str | Stream,
        *,
        client: ConnectOptions | None = None,
        buffer: str | Buffer = "memory",
        linger_ms: float = _DEFAULTS.linger_ms,
        batch_records: int = _DEFAULTS.batch_records,
        batch_bytes: int = _DEFAULTS.batch_bytes,
        compression: str | None = _DEFAULTS.compression,
        max_request_bytes: int = _DEFAULTS.max_request_bytes,
        in_flight: int | None = _DEFAULTS.in_flight,
        when_full: WhenFull = _DEFAULTS.when_full,
        max_block_s: float = _DEFAULTS.max_block_s,
        buffer_records: int = _DEFAULTS.buffer_records,
        buffer_bytes: int = _DEFAULTS.buffer_bytes,
        delivery_timeout_s: float = _DEFAULTS.delivery_timeout_s,
        partitioner: str | Partitioner | None = None,
        retry: Retry = _DEFAULTS.retry,
        on_delivery: Callable[[Receipt], object] | None = None,
        idempotent: bool | None = _DEFAULTS.idempotent,
        transactional_id: str | None = _DEFAULTS.transactional_id,
        spool_flush: SpoolFlush | None = _DEFAULTS.spool_flush,
    ) -> None:
        settings = ProducerSettings(
            linger_ms=linger_ms,
            batch_records=batch_records,
            batch_bytes=batch_bytes,
            compression=compression,
            max_request_bytes=max_request_bytes,
            in_flight=in_flight,
            when_full=when_full,
            max_block_s=max_block_s,
            buffer_records=buffer_records,
            buffer_bytes=buffer_bytes,
            delivery_timeout_s=delivery_timeout_s,
            retry=retry,
            idempotent=idempotent,
            transactional_id=transactional_id,
            spool_flush=spool_flush,
        )
        if on_delivery is not None and not callable(on_delivery):
            raise ConfigError(f"on_delivery={on_delivery!r} must be callable")
        if not isinstance(stream, str | Stream):
            raise ConfigError(
                f"{stream!r} is not a stream: pass a URL, such as 'log:./data', or a stream from `connect`"
            )
        if not isinstance(buffer, str) and not hasattr(buffer, "features"):
            raise ConfigError(f"buffer={buffer!r} is neither 'memory' nor 'spool:FOLDER' nor a Buffer")
        chosen_partitioner = choose_partitioner(partitioner)
        owned_stream: Stream | None = None
        if isinstance(stream, str):
            owned_stream = open_for_producing(stream, client or {}, durable=_is_durable(buffer))
        elif client:
            raise ConfigError("client is for a URL: pass these options to `connect`, which has been called")
        system: Stream = owned_stream if owned_stream is not None else stream  # type: ignore[assignment]
        owned_buffer: MemoryBuffer | Spool | None = None
        try:
            check_guarantees(system, settings, durable=_is_durable(buffer))
            kept = open_buffer(buffer, settings)
            owned_buffer = kept if isinstance(buffer, str) and not isinstance(kept, ForeignBuffer) else None
            chosen = choose_delivery(system, settings, kept, chosen_partitioner)
            self._engine = Engine(kept, chosen, settings, owned_buffer, owned_stream)
        except BaseException:
            if owned_buffer is not None:
                owned_buffer.close()
            if owned_stream is not None:
                owned_stream.close()
            raise
        self.settings = settings
        self._url = system.url
        self._on_delivery = on_delivery
        self._transactions = OpenTransactions()
        self._names: set[str] = set()
        self._hurry = self._engine.hurry
        self._largest = max_request_bytes + RECORD_OVERHEAD_BYTES
        self._surely_small = max_request_bytes - LONGEST_TOPIC_NAME
        """A value of at most this size fits, whatever the name of its topic."""
        self._pid = os.getpid()
        self._forks = FORKS.count
        self._closed = False
        self._forgotten = weakref.finalize(self, _let_go, self._engine, system.url, self._pid)

    @overload
    def send(self, topic: Topic[T], value: T | None, key: object = None, **options: Unpack[SendOptions]) -> Receipt: ...

    @overload
    def send(self, topic: str, value: object, key: object = None, **options: Unpack[SendOptions]) -> Receipt: ...

    def send(
        self,
        topic: str | Topic[Any],
        value: object,
        key: object = None,
        headers: NewHeaders = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
        delay_s: float | None = None,
    ) -> Receipt:
        """Send a record. It is in the buffer when this returns, and stored once its receipt is done.

        A topic name takes bytes and text as they are, and encodes anything else as JSON; a `Topic` takes values of its
        type. The timestamp defaults to now. With `delay_s`, the library's consumers handle the record that many seconds
        from now; other readers see it at once. `when_full` says what happens while the buffer is full.

        Raises SerdeError, InvalidTopicError, RecordTooLargeError or ConfigError for a record that can never be sent;
        BufferFullError; StorageError if the disk of a spool is full; DeliveryError if this producer has failed.
        """
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        record = new_record(topic, value, key, headers, timestamp, partition, delay_s)
        if isinstance(topic, Topic) and topic.partitions is not None:
            self.declare(topic)
        if OBSERVED.tracer is not None:
            return send_traced(OBSERVED.tracer, record, self._send)
        return self._send(record)

    def declare(self, topic: Topic[Any]) -> None:
        """Create this topic with its number of partitions, if it does not exist, before the next record for it is
        delivered. `send` does this for every Topic it is given."""
        self._engine.declare(topic)

    def send_record(self, record: NewRecord) -> Receipt:
        """Send an encoded record. Otherwise the same as `send`."""
        if not isinstance(record, NewRecord):
            raise ConfigError(f"{record!r} is not a NewRecord: `send` takes a topic and a value")
        if record.timestamp_ms is None:
            record = dataclasses.replace(record, timestamp_ms=time.time_ns() // 1_000_000)
        if OBSERVED.tracer is not None:
            return send_traced(OBSERVED.tracer, record, self._send)
        return self._send(record)

    @overload
    async def send_async(
        self, topic: Topic[T], value: T | None, key: object = None, **options: Unpack[SendOptions]
    ) -> RecordMetadata: ...

    @overload
    async def send_async(
        self, topic: str, value: object, key: object = None, **options: Unpack[SendOptions]
    ) -> RecordMetadata: ...

    async def send_async(
        self,
        topic: str | Topic[Any],
        value: object,
        key: object = None,
        headers: NewHeaders = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
        delay_s: float | None = None,
    ) -> RecordMetadata:
        """Send a record and return where it is stored, once it is acknowledged. Does not block the event loop.

        It also waits for room in the buffer. Cancelling the task does not take its record back. Raises what `send` and
        `Receipt.result` raise.
        """
        self._check_usable()
        if self._transactions.current is not None:
            raise ConfigError("send_async cannot be used in a transaction, which is sent when its block ends: use send")
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        record = new_record(topic, value, key, headers, timestamp, partition, delay_s)
        if isinstance(topic, Topic) and topic.partitions is not None:
            self.declare(topic)
        receipt = Receipt(record.topic)
        if self._on_delivery is not None:
            receipt.add_done_callback(self._on_delivery)
        settled = None
        if OBSERVED.tracer is not None:
            record, settled = OBSERVED.tracer.sending(record)
            receipt.add_done_callback(settled)
        try:
            self._check_record(record)
            await put_async(self._engine, (record,), (receipt,), self._check_usable)
        except BaseException as error:
            if settled is not None:
                settled(error)
            raise
        self._engine.pump.nudge()
        return await receipt

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Deliver what this thread or task sends in the block together, or not at all.

        Records are sent when the block ends, and discarded if it ends with an error. With memory, the transaction is
        committed when the block has ended; with a spool, it is stored there. Needs `transactional_id`, or a spool on a
        stream with transactions.
        """
        self._check_usable()
        engine = self._engine
        if not engine.is_whole:
            raise ConfigError("this producer has no transactions: pass transactional_id")
        with self._transactions.open() as staged:
            yield
            if staged.records and not engine.try_put(staged.records, staged.receipts):
                put_when_full(engine, staged.records, staged.receipts, self._check_usable)
        if not engine.durable:
            for receipt in staged.receipts:
                receipt.result()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that is in the buffer now is acknowledged, including records of an earlier process.

        Raises DeliveryError if a record could not be delivered and its receipt was not looked at, and TimeoutError if
        records are still waiting after `timeout_s` seconds.
        """
        self._check_usable()
        check_seconds(timeout_s, "timeout_s")
        engine = self._engine
        engine.wait(timeout_s)
        engine.pending.raise_failures()

    def wait_until_settled(self, timeout_s: float | None = None) -> bool:
        """Flush like `flush`, but return whether it finished in time, and leave failures to the receipts."""
        self._check_usable()
        try:
            self._engine.wait(timeout_s)
        except TimeoutError:
            return False
        return True

    @property
    def stats(self) -> ProducerStats:
        return self._engine.stats()

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what is in the buffer, then release everything, within `timeout_s` seconds.

        The default is `delivery_timeout_s`, or 10 s with a spool. Records still in memory then fail: their receipts say
        so, and a DeliveryError is raised unless every receipt was looked at. Records in a spool stay there and are
        delivered when it is opened again.
        """
        if self._closed:
            return
        self._closed = True
        self._forgotten.detach()
        if self._forks != FORKS.count:
            return  # a forked process does not have the threads to wait for
        if timeout_s is None:
            timeout_s = _SPOOL_CLOSE_S if self._engine.durable else self.settings.delivery_timeout_s
        self._engine.close(timeout_s)

    def __repr__(self) -> str:
        return f"<Producer to {self._url}{' (closed)' if self._closed else ''}>"

    def _send(self, record: NewRecord) -> Receipt:
        if self._closed or self._forks != FORKS.count:
            self._check_usable()
        self._check_record(record)
        receipt = Receipt(record.topic, self._hurry)
        if self._on_delivery is not None:
            receipt.add_done_callback(self._on_delivery)
        staged = self._transactions.current if self._transactions.count else None
        if staged is not None:
            staged.records.append(record)
            staged.receipts.append(receipt)
        elif not self._engine.try_put((record,), (receipt,)):
            put_when_full(self._engine, (record,), (receipt,), self._check_usable)
        return receipt

    def _check_record(self, record: NewRecord) -> None:
        if record.topic not in self._names:
            self._check_name(record.topic)
        value = record.value
        if ((value is not None and len(value) > self._surely_small) or record.key is not None or record.headers) and (
            size := size_of(record)
        ) > self._largest:
            raise RecordTooLargeError(
                f"a record of {size - RECORD_OVERHEAD_BYTES} bytes for topic {record.topic!r} is larger than "
                f"max_request_bytes={self.settings.max_request_bytes}: send less, or raise it and "
                "max.message.bytes of the topic"
            )

    def _check_name(self, name: str) -> None:
        check_topic_name(name)
        if len(self._names) < 10_000:
            self._names.add(name)

    def _check_usable(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the producer to {self._url} is closed: create another")
        if self._forks != FORKS.count:
            raise ConnectionClosedError(
                f"the producer to {self._url} belongs to process {self._pid}: create one in this process"
            )


def _is_durable(buffer: str | Buffer) -> bool:
    return buffer.startswith(SPOOL_PREFIX) if isinstance(buffer, str) else Feature.DURABLE in buffer.features


def _let_go(engine: Engine, url: str, pid: int) -> None:
    """Deliver what is in memory, if possible: the producer was dropped, or the program ended, without `close`."""
    if pid != os.getpid():
        return
    warnings.warn(f"the producer to {url} was not closed: use it in a with block", ResourceWarning, stacklevel=2)
    try:
        engine.close(_EXIT_FLUSH_S)
    except PenstockError as error:
        logger.error("the producer to %s was not closed, and %s", url, error)
