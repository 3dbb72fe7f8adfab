"""`connect`, as users know it: a connection that may send through a spool."""

from __future__ import annotations

import os
from typing import Unpack

from penstock import streams
from penstock.errors import ConfigError
from penstock.producing.settings import SpoolFlush
from penstock.producing.spooled_sender import SpooledSender
from penstock.streams import Connection
from penstock.streams.options import ConnectOptions


def connect(
    url: str,
    *,
    spool: str | os.PathLike[str] | None = None,
    spool_flush: SpoolFlush = "os",
    **options: Unpack[ConnectOptions],
) -> Connection:
    """Connect to a stream: `log:./data` for the log in a folder, `kafka://host:9092` for brokers that are running,
    `memory:name` for records in this process that are gone when it ends.

    Brokers that want TLS or a login are told so with the URL, by librdkafka's names: in a file that it names,
    `kafka://host:9093?config=FILE`, or else in the one that PENSTOCK_KAFKA_CONFIG names; in the URL itself,
    `?security.protocol=SSL&ssl.ca.location=ca.pem`; or here, `librdkafka={...}`. Of these, a later one wins.

    With `spool`, a folder, a record is durable when `send` returns: it survives this process, with spool_flush="fsync"
    a power cut as well, and is delivered once, by this connection or the next one with this spool. A spool has one
    owner at a time. What it costs stands in the docs of producing.

    For a `log:` URL the broker of the folder is found, or started if there is none; it ends by itself once no client
    has been connected for `exit_when_idle_s`, and is started again if it dies while this connection is open. What the
    other options mean stands at `penstock.streams.options.Options`.

    Raises UrlError for a URL that is not understood, ConfigError for an option that is not allowed, SpoolInUseError for
    a spool that another process has, and BrokerUnavailableError when no broker could be reached or started within
    `connect_timeout_s`.
    """
    if spool is None:
        if spool_flush != "os":
            raise ConfigError(f"spool_flush={spool_flush!r} says how a spool is kept: give spool='./folder', too")
        return streams.connect(url, **options)
    if url.startswith("memory:"):
        raise ConfigError(f"{url} has nothing that a spool could wait for: what is sent is stored at once")
    connection = streams.connect(url, **options)
    try:
        sender = SpooledSender(
            connection,
            spool,
            linger_ms=connection.options.linger_ms,
            delivery_timeout_s=connection.options.delivery_timeout_s,
            spool_flush=spool_flush,
        )
    except BaseException:
        connection.close()
        raise
    connection.send_through(sender)
    return connection
