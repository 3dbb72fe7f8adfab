"""The producer that users hold."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from penstock.abc import Buffer, Feature, Streams
from penstock.errors import ConfigError, ConnectionClosedError, PenstockError, RecordTooLargeError
from penstock.log.store import check_topic_name
from penstock.model import NewRecord, Place, Receipt
from penstock.model.observing import OBSERVED, send_traced
from penstock.producing.admission import call_in, put_async, put_when_full
from penstock.producing.backoff import Backoff
from penstock.producing.buffered import ForeignBuffer
from penstock.producing.choosing import (
    SPOOL_PREFIX,
    check_guarantees,
    choose_delivery,
    kafka_of,
    open_buffer,
    open_for_producing,
)
from penstock.producing.counts import ProducerStats
from penstock.producing.engine import Engine
from penstock.producing.kept import RECORD_OVERHEAD_BYTES, size_of
from penstock.producing.memory import MemoryBuffer
from penstock.producing.partitioners import Partitioner, choose_partitioner
from penstock.producing.settings import ProducerSettings, SpoolFlush, WhenFull
from penstock.producing.spooling import Spool
from penstock.producing.transaction import OpenTransactions
from penstock.serde import Topic, new_record
from penstock.serde.plain import NewHeaders
from penstock.streams.forks import FORKS

logger = logging.getLogger(__name__)

_DEFAULTS: Final = ProducerSettings()
_EXIT_FLUSH_S: Final = 10.0
"""How long a program that forgets to close its producer is held up for what is in its memory."""
_SPOOL_CLOSE_S: Final = 10.0
"""How long `close` delivers from a spool unless it is told. The rest is safe, and delivered by the next start."""
_LONGEST_NAME: Final = 249


class Producer:
    """Sends records to a stream. Made once, used by any thread, closed with `close` or by a `with` block.

    `streams` is a URL, or streams that are connected already and stay so. `buffer` is "memory", or "spool:FOLDER" to
    have every record survive this process from the moment when `send` returns. What the other settings mean stands at
    `penstock.producing.settings.ProducerSettings`; what cannot be had together is refused here.
    """

    def __init__(
        self,
        streams: str | Streams,
        *,
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
        retry: Backoff = _DEFAULTS.retry,
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
            raise ConfigError(f"on_delivery={on_delivery!r} is no function")
        chosen_partitioner = choose_partitioner(partitioner)
        owned_streams = open_for_producing(streams, durable=_is_durable(buffer)) if isinstance(streams, str) else None
        system: Streams = owned_streams if owned_streams is not None else streams  # type: ignore[assignment]
        owned_buffer: MemoryBuffer | Spool | None = None
        try:
            check_guarantees(system, settings, durable=_is_durable(buffer))
            kept = open_buffer(buffer, settings)
            owned_buffer = kept if isinstance(buffer, str) and not isinstance(kept, ForeignBuffer) else None
            chosen = choose_delivery(system, settings, kept, chosen_partitioner)
            self._engine = Engine(kept, chosen, settings, owned_buffer, owned_streams)
        except BaseException:
            if owned_buffer is not None:
                owned_buffer.close()
            if owned_streams is not None:
                owned_streams.close()
            raise
        self.settings = settings
        self._url = system.url
        self._on_delivery = on_delivery
        self._transactions = OpenTransactions()
        self._checks_names = kafka_of(system) is not None
        self._names: set[str] = set()
        self._hurry = self._engine.hurry
        self._largest = max_request_bytes + RECORD_OVERHEAD_BYTES
        self._surely_small = max_request_bytes - _LONGEST_NAME
        """A value of this size has room for the name of its topic, and need not be looked at any further."""
        self._pid = os.getpid()
        self._forks = FORKS.count
        self._closed = False
        self._forgotten = weakref.finalize(self, _let_go, self._engine, system.url, self._pid)

    def send(
        self,
        topic: str | Topic[Any],
        value: object,
        key: object = None,
        headers: NewHeaders = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Send a record. It is in the buffer when this returns, and stored when its receipt says so.

        A topic by name takes bytes and text as they are, and anything else as JSON; a `Topic` takes values of its type.
        The timestamp is now unless it is given. While the buffer is full, `when_full` says what happens.

        Raises SerdeError, InvalidTopicError, RecordTooLargeError or ConfigError for a record that could never be sent;
        BufferFullError; StorageError when the disk of a spool has no room; DeliveryError when this producer has failed.
        """
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        record = _checked(new_record(topic, value, key, headers, timestamp, partition))
        if OBSERVED.tracer is not None:
            return send_traced(OBSERVED.tracer, record, self._send)
        return self._send(record)

    def send_record(self, record: NewRecord) -> Receipt:
        """Send a record that is in bytes already. As `send` in everything else."""
        if record.timestamp_ms is None:
            record = dataclasses.replace(record, timestamp_ms=time.time_ns() // 1_000_000)
        if OBSERVED.tracer is not None:
            return send_traced(OBSERVED.tracer, record, self._send)
        return self._send(record)

    async def send_async(
        self,
        topic: str | Topic[Any],
        value: object,
        key: object = None,
        headers: NewHeaders = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
    ) -> Place:
        """Send a record, and give its place once it is acknowledged. Waits, for room too, without holding up others.

        A task that is cancelled while it waits does not take its record back. Raises what `send` and `Receipt.result`
        raise.
        """
        self._check_usable()
        if self._transactions.current is not None:
            raise ConfigError("send_async waits for the record, and a transaction for the end of its block: use send")
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        record = _checked(new_record(topic, value, key, headers, timestamp, partition))
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
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        receipt.add_done_callback(lambda _: call_in(loop, done.set))
        self._engine.pump.nudge()
        await done.wait()
        return receipt.result(0)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What this thread, or task, sends inside is delivered together or not at all.

        It is sent when the block ends, and not at all when it ends with an error. From memory, it is committed by the
        stream when the block has been left; in a spool, it is kept there. Needs `transactional_id`, or a spool on a
        stream with transactions.
        """
        self._check_usable()
        engine = self._engine
        if not engine.is_whole:
            raise ConfigError("this producer has no transactions: give it a transactional_id")
        with self._transactions.open() as staged:
            yield
            if staged.records and not engine.try_put(staged.records, staged.receipts):
                put_when_full(engine, staged.records, staged.receipts, self._check_usable)
        if not engine.durable:
            for receipt in staged.receipts:
                receipt.result()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that is in the buffer now is acknowledged, what an earlier process left included.

        Raises DeliveryError when a record could not be delivered and nobody has learnt it from its receipt, and
        TimeoutError when some are still waiting after `timeout` seconds.
        """
        self._check_usable()
        engine = self._engine
        engine.wait(timeout)
        engine.ledger.raise_failures()

    def wait_until_settled(self, timeout: float | None = None) -> bool:
        """As `flush`, but says whether it came to that in time, and leaves failures to the receipts."""
        self._check_usable()
        try:
            self._engine.wait(timeout)
        except TimeoutError:
            return False
        return True

    @property
    def stats(self) -> ProducerStats:
        return self._engine.stats()

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is in the buffer, and let go of everything, at most `timeout` seconds later.

        Without `timeout` it is `delivery_timeout_s`, or 10 s with a spool. What memory holds then has failed: its
        receipts say so, and so does a DeliveryError raised here, unless each was looked at. What a spool holds stays
        there, and is delivered when it is opened again.
        """
        if self._closed:
            return
        self._closed = True
        self._forgotten.detach()
        if self._forks != FORKS.count:
            return  # a forked process has none of the threads that would be waited for
        if timeout is None:
            timeout = _SPOOL_CLOSE_S if self._engine.durable else self.settings.delivery_timeout_s
        self._engine.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

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
                f"max_request_bytes={self.settings.max_request_bytes}: send less, or raise it, and "
                "max.message.bytes of the topic"
            )

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{name!r} is no topic: give its name, or a Topic")
        if self._checks_names:
            check_topic_name(name)
        if len(self._names) < 10_000:
            self._names.add(name)

    def _check_usable(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the producer to {self._url} is closed: make another")
        if self._forks != FORKS.count:
            raise ConnectionClosedError(
                f"the producer to {self._url} belongs to process {self._pid}, which made it: make one in this "
                "process, too"
            )


def _is_durable(buffer: str | Buffer) -> bool:
    return buffer.startswith(SPOOL_PREFIX) if isinstance(buffer, str) else Feature.DURABLE in buffer.features


def _let_go(engine: Engine, url: str, pid: int) -> None:
    """The producer was forgotten, or the program ends, without `close`: save what is in memory, if that can be done."""
    if pid != os.getpid():
        return
    warnings.warn(f"the producer to {url} was not closed: use it in a with block", ResourceWarning, stacklevel=2)
    try:
        engine.close(_EXIT_FLUSH_S)
    except PenstockError as error:
        logger.error("the producer to %s was not closed, and %s", url, error)


def _checked(record: NewRecord) -> NewRecord:
    """The same record, if its partition can be one: a stream may find that out much later."""
    partition = record.partition
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int)):
        raise ConfigError(f"the partition {partition!r} is no number")
    if partition is not None and partition < 0:
        raise ConfigError(f"the partition {partition} is negative: they are numbered from 0")
    return record
