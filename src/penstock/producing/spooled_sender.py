"""What a connection sends through when it has a spool: `connection.send` is durable when it returns."""

from __future__ import annotations

import os
import weakref

from penstock.abc import Streams
from penstock.errors import ConfigError
from penstock.model import Headers, NewRecord, Receipt
from penstock.producing.choosing import SPOOL_PREFIX
from penstock.producing.producer import Producer
from penstock.producing.settings import SpoolFlush


class SpooledSender:
    """Has the methods of `penstock.streams.kafka.sending.Sender`, and takes its place in a connection.

    What `close` cannot deliver in time stays in the spool, and is delivered by the next connection that has it.
    """

    def __init__(
        self,
        streams: Streams,
        folder: str | os.PathLike[str],
        *,
        linger_ms: float,
        delivery_timeout_s: float,
        spool_flush: SpoolFlush = "os",
    ) -> None:
        if not os.fspath(folder):
            raise ConfigError("the spool has no folder: give spool='./folder'")
        self._producer = Producer(
            weakref.proxy(streams),  # the connection holds us, and must not live for ever by that
            buffer=f"{SPOOL_PREFIX}{os.fspath(folder)}",
            linger_ms=linger_ms,
            delivery_timeout_s=delivery_timeout_s,
            max_block_s=delivery_timeout_s,
            spool_flush=spool_flush,
        )

    @property
    def unacknowledged(self) -> int:
        """How many records are in the spool and not acknowledged, those of earlier processes among them."""
        return self._producer.stats.buffered

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> Receipt:
        return self._producer.send_record(NewRecord(topic, value, key, headers, timestamp_ms, partition))

    def flush(self, timeout: float | None) -> None:
        self._producer.flush(timeout)

    def wait_until_settled(self, timeout: float | None) -> bool:
        """Whether every record has been acknowledged or refused by the end of `timeout` seconds."""
        return self._producer.wait_until_settled(timeout)

    def give_up(self, reason: str) -> None:
        """The broker cannot be reached over this connection any more: the producer finds out by itself, and what is in
        the spool stays there."""

    def close(self, timeout: float) -> None:
        self._producer.close(timeout)
