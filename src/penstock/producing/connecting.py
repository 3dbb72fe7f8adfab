"""The public `connect`, whose connection may send through a spool."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Any, Final, Unpack

from penstock import streams
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.model import NewRecord, Receipt
from penstock.producing.choosing import SPOOL_PREFIX
from penstock.producing.producer import Producer
from penstock.producing.settings import SpoolFlush
from penstock.serde import Topic
from penstock.streams import Connection
from penstock.streams.options import ConnectOptions, Options
from penstock.streams.url import is_memory


class SpooledSender:
    """Has the methods of `penstock.streams.connection.Spool`, and replaces it in a connection.

    What `close` cannot deliver in time stays in the spool, and the next connection with this spool delivers it.
    """

    def __init__(
        self,
        stream: Stream,
        folder: str | os.PathLike[str],
        *,
        linger_ms: float,
        delivery_timeout_s: float,
        spool_flush: SpoolFlush = "os",
    ) -> None:
        if not os.fspath(folder):
            raise ConfigError("spool has an empty path: use spool='./folder'")
        self._producer = Producer(
            weakref.proxy(stream),  # the connection holds this object, which must not keep it alive
            buffer=f"{SPOOL_PREFIX}{os.fspath(folder)}",
            linger_ms=linger_ms,
            delivery_timeout_s=delivery_timeout_s,
            max_block_s=delivery_timeout_s,
            spool_flush=spool_flush,
        )

    @property
    def unacknowledged(self) -> int:
        """Records in the spool that are not acknowledged, including those of earlier processes."""
        return self._producer.stats.buffered

    def declare(self, topic: Topic[Any]) -> None:
        self._producer.declare(topic)

    def send(self, record: NewRecord) -> Receipt:
        return self._producer.send_record(record)

    async def send_async(self, record: NewRecord) -> Receipt:
        """Send in a thread, because it waits for the disk."""
        return await asyncio.to_thread(self.send, record)

    def flush(self, timeout_s: float | None) -> None:
        self._producer.flush(timeout_s)

    def wait_until_settled(self, timeout_s: float | None) -> bool:
        """Wait, and return whether every record was acknowledged or rejected within `timeout_s` seconds."""
        return self._producer.wait_until_settled(timeout_s)

    def close(self, timeout_s: float) -> None:
        self._producer.close(timeout_s)


_DEFAULTS: Final = Options()


def connect(
    url: str,
    *,
    spool: str | os.PathLike[str] | None = None,
    spool_flush: SpoolFlush = "os",
    **options: Unpack[ConnectOptions],
) -> Connection:
    """Connect to a stream: `log:./data` is the log in a folder, `kafka://host:9092` a running cluster, and
    `memory:name` an in-process stream for tests.

    TLS and login settings have librdkafka's names. They come from a file, `kafka://host:9093?config=FILE` or
    PENSTOCK_KAFKA_CONFIG; from the URL, `?security.protocol=SSL&ssl.ca.location=ca.pem`; or from `librdkafka={...}`.
    A later one of these wins.

    With `spool`, a folder, a record is durable when `send` returns: it survives this process, and with
    spool_flush="fsync" a power cut. It is delivered once, by this connection or the next one with this spool. A spool
    has one owner at a time.

    For a `log:` URL, the folder's broker is found, or started if none is running. It stops once no client has been
    connected for `exit_when_idle_s`, and is restarted if it dies while this connection is open. The other options are
    explained in `penstock.streams.options.Options`.

    Raises UrlError for an invalid URL, ConfigError for an invalid option, SpoolInUseError for a spool of another
    process, and BrokerUnavailableError if no broker could be reached or started within `connect_timeout_s`.
    """
    if spool is None:
        if spool_flush != "os":
            raise ConfigError(f"spool_flush={spool_flush!r} needs a spool: pass spool='./folder'")
        return streams.connect(url, **options)
    if not isinstance(spool, str | os.PathLike):
        raise ConfigError(f"spool={spool!r} must be the path of a folder")
    if is_memory(url):
        raise ConfigError(f"{url} needs no spool: records are stored at once")
    connection = streams.connect(url, **options)
    try:
        sender = SpooledSender(
            connection,
            spool,
            linger_ms=options.get("linger_ms", _DEFAULTS.linger_ms),
            delivery_timeout_s=options.get("delivery_timeout_s", _DEFAULTS.delivery_timeout_s),
            spool_flush=spool_flush,
        )
    except BaseException:
        connection.close()
        raise
    connection.send_through(sender)
    return connection
