"""What librdkafka is told, for each of the things we use it for."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from penstock.streams.options import Options

logger = logging.getLogger("penstock.streams.kafka.librdkafka")

_ORDINARY: Final = re.compile(r"Connect to|Disconnected|closed by peer|Receive failed|Send failed|^REQTMOUT|^GETPID")


def _calm(line: logging.LogRecord) -> bool:
    """Tell of lost connections as what they are: an everyday event, after which librdkafka tries again.

    A user's settings are for producers and readers alike; that each warns of those meant for the other is left out.
    """
    text = line.getMessage()
    if _ORDINARY.search(text):
        line.levelno, line.levelname = logging.INFO, "INFO"
    return not text.startswith("CONFWARN")


logger.addFilter(_calm)

Configuration = dict[str, Any]

LARGEST_RECORD_BYTES: Final = 100_000_000
"""What librdkafka lets through. The topic's `max.message.bytes` is the limit that users meet and can change."""

READER_GROUP: Final = "penstock-reader"
"""librdkafka's consumer insists on a group. Readers never join it and commit nothing."""

_AHEAD: Final = 50_000
"""How many messages of a partition are fetched ahead of the reader. Measured: with fewer, many partitions are slower;
with more, memory grows, and the processor's caches are of less use."""


def client_configuration(bootstrap: str, options: Options) -> Configuration:
    """What all clients share."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": options.client_id,
        "logger": logger,
        # Its own default waits up to ten seconds before it looks again for a broker that was restarted.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 1_000,
        # A new topic is there at once; a client that asks again after a second has wasted one.
        "topic.metadata.refresh.fast.interval.ms": 50,
        "retry.backoff.ms": 50,
    }


def admin_configuration(bootstrap: str, options: Options) -> Configuration:
    """Asking about topics and groups."""
    return {
        **client_configuration(bootstrap, options),
        # Where there is one broker, librdkafka 2.16 never finds the coordinators of groups again once that was
        # restarted, unless it is told this.
        "metadata.recovery.strategy": "none",
        **options.librdkafka,
    }


def producer_configuration(bootstrap: str, options: Options) -> Configuration:
    """Every acknowledged record stored once and in order (`acks` all), as many in a batch as linger allows."""
    safe = options.acks == "all"
    return {
        **client_configuration(bootstrap, options),
        "acks": options.acks,
        "enable.idempotence": safe,
        # Without idempotence, a batch that is tried again may overtake, so only one may be under way.
        "max.in.flight.requests.per.connection": 5 if safe or options.acks == 0 else 1,
        # Where the Java client, and with it Kafka Streams, Connect and Spark, would put a record of the same key.
        "partitioner": "murmur2_random",
        "compression.type": options.compression,
        "linger.ms": options.linger_ms,
        "delivery.timeout.ms": round(options.delivery_timeout_s * 1000),
        "message.max.bytes": LARGEST_RECORD_BYTES,
        **options.librdkafka,
    }


def transactional_configuration(
    bootstrap: str, options: Options, transactional_id: str, transaction_timeout_s: float
) -> Configuration:
    """Everything between the beginning of a transaction and its end stored, or nothing of it to be seen."""
    transaction_timeout_ms = round(transaction_timeout_s * 1000)
    return {
        **producer_configuration(bootstrap, options),
        # A broker that still writes the markers of the last transaction wants to be asked for the next one again.
        "retry.backoff.ms": 10,
        "delivery.timeout.ms": transaction_timeout_ms,
        **options.librdkafka,
        "acks": "all",
        "enable.idempotence": True,
        "max.in.flight.requests.per.connection": 5,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_timeout_ms,
        # Where there is one broker, librdkafka 2.16 hangs for good when that is restarted, unless it is told this.
        "metadata.recovery.strategy": "none",
    }


def reader_configuration(bootstrap: str, options: Options, limit: int | None) -> Configuration:
    """Large fetches, queued ahead of the reader, unless it wants only a few records."""
    return {
        **client_configuration(bootstrap, options),
        "group.id": READER_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # An offset that is gone is an error to tell, not a reason to start somewhere else.
        "auto.offset.reset": "error",
        "queued.min.messages": _AHEAD if limit is None else max(1, min(limit, _AHEAD)),
        "queued.max.messages.kbytes": 64 * 1024,
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 100,
        "isolation.level": "read_committed",
        **options.librdkafka,
    }


def member_configuration(
    bootstrap: str, options: Options, group: str, *, member: str, strategy: str, session_timeout_s: float
) -> Configuration:
    """A member of a group that is told where to begin, and commits when it is told to."""
    session_timeout_ms = round(session_timeout_s * 1000)
    return {
        **reader_configuration(bootstrap, options, None),
        "group.id": group,
        "client.id": member or options.client_id,
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": session_timeout_ms,
        # With its answer a member hears that partitions are shared out anew, so a rebalance takes at least this long.
        "heartbeat.interval.ms": max(1, min(1_000, session_timeout_ms // 10)),
        # Partitions that a topic is given later are shared out when a member hears of them.
        "topic.metadata.refresh.interval.ms": 30_000,
        # How long a member may be busy, handing back what is in flight above all, before the group goes on without it.
        "max.poll.interval.ms": max(300_000, session_timeout_ms),
        **options.librdkafka,
    }


def group_configuration(bootstrap: str, options: Options, group: str, reset: str) -> Configuration:
    """A member of a group, which commits when it is told to."""
    return {
        **client_configuration(bootstrap, options),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": reset,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 5,
        "isolation.level": "read_committed",
        **options.librdkafka,
    }
