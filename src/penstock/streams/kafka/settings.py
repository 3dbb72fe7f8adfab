"""The configurations of librdkafka's clients."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from penstock.streams.options import Options

logger = logging.getLogger("penstock.streams.kafka.librdkafka")

_ORDINARY: Final = re.compile(
    r"Connect to|Disconnected|closed by peer|Receive failed|Send failed|^REQTMOUT|^GETPID"
    r"|fenced by a newer instance|with an old epoch"
)


def _calm(line: logging.LogRecord) -> bool:
    """Log as INFO lost connections, which librdkafka restores, and fencing, which is an OvertakenError. Drop CONFWARN.

    The user's settings go to producers and consumers, and each would warn about those of the other.
    """
    text = line.getMessage()
    if _ORDINARY.search(text):
        line.levelno, line.levelname = logging.INFO, "INFO"
    return not text.startswith("CONFWARN")


logger.addFilter(_calm)

Configuration = dict[str, Any]

LARGEST_RECORD_BYTES: Final = 100_000_000
"""The limit of librdkafka, above any reasonable `max.message.bytes` of a topic, which is the one users can change."""

READER_GROUP: Final = "penstock-reader"
"""librdkafka's consumer needs a group id. Readers never join the group, and commit nothing."""

ANSWER_TIMEOUT_S: Final = 10.0
"""How long a broker may take for an answer before another one is asked. With librdkafka's defaults, 60 s and 30 s, a
broker that is cut off holds up everything for as long, though others lead its partitions within seconds. Requests that
wait on purpose, such as joining a group, have timeouts of their own."""

LONGEST_BACKOFF_S: Final = 1.0
"""The longest pause between two attempts to connect to a broker."""

_AHEAD: Final = 50_000
"""How many messages of a partition are prefetched. Measured: fewer are slower with many partitions; more take memory
and miss the processor's caches."""


def client_configuration(bootstrap: str, options: Options) -> Configuration:
    return {
        "bootstrap.servers": bootstrap,
        "client.id": options.client_id,
        "logger": logger,
        # The default waits up to ten seconds before it connects again to a restarted broker.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": round(1000 * LONGEST_BACKOFF_S),
        # A new topic is ready at once: do not wait a second before asking again.
        "topic.metadata.refresh.fast.interval.ms": 50,
        "retry.backoff.ms": 50,
        "socket.timeout.ms": round(ANSWER_TIMEOUT_S * 1000),
    }


def admin_configuration(bootstrap: str, options: Options) -> Configuration:
    return {
        **client_configuration(bootstrap, options),
        # With a single broker that is restarted, librdkafka 2.16 never finds the group coordinators again without this.
        "metadata.recovery.strategy": "none",
        **options.librdkafka,
    }


def producer_configuration(bootstrap: str, options: Options) -> Configuration:
    """librdkafka's configuration of a producer. With `acks` all, every acknowledged record is stored once and in
    order."""
    safe = options.acks == "all"
    return {
        **client_configuration(bootstrap, options),
        "acks": options.acks,
        "enable.idempotence": safe,
        # Without idempotence, a retry may change the order unless only one request is in flight.
        "max.in.flight.requests.per.connection": 5 if safe or options.acks == 0 else 1,
        # The same partition for a key as the Java client, and with it Kafka Streams, Connect and Spark.
        "partitioner": "murmur2_random",
        "compression.type": options.compression,
        "linger.ms": options.linger_ms,
        "delivery.timeout.ms": round(options.delivery_timeout_s * 1000),
        "request.timeout.ms": round(ANSWER_TIMEOUT_S * 1000),
        "message.max.bytes": LARGEST_RECORD_BYTES,
        **options.librdkafka,
    }


def transactional_configuration(
    bootstrap: str, options: Options, transactional_id: str, transaction_timeout_s: float
) -> Configuration:
    transaction_timeout_ms = round(transaction_timeout_s * 1000)
    return {
        **producer_configuration(bootstrap, options),
        # While a broker writes the markers of the last transaction, it refuses the next one: retry soon.
        "retry.backoff.ms": 10,
        "delivery.timeout.ms": transaction_timeout_ms,
        # librdkafka refuses one that is longer than the transaction may take.
        "socket.timeout.ms": min(round(ANSWER_TIMEOUT_S * 1000), transaction_timeout_ms),
        **options.librdkafka,
        "acks": "all",
        "enable.idempotence": True,
        "max.in.flight.requests.per.connection": 5,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_timeout_ms,
        # With a single broker that is restarted, librdkafka 2.16 hangs for good without this.
        "metadata.recovery.strategy": "none",
    }


def reader_configuration(bootstrap: str, options: Options, limit: int | None) -> Configuration:
    """librdkafka's configuration of a reader: large fetches, prefetched, unless only `limit` records are wanted."""
    return {
        **client_configuration(bootstrap, options),
        "group.id": READER_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # An offset out of range is an error, not a reason to start somewhere else.
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
    """librdkafka's configuration of a group member that is told where to start, and commits explicitly."""
    session_timeout_ms = round(session_timeout_s * 1000)
    return {
        **reader_configuration(bootstrap, options, None),
        "group.id": group,
        "client.id": member or options.client_id,
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": session_timeout_ms,
        # Members learn of a rebalance from a heartbeat's answer, so it takes at least this long.
        "heartbeat.interval.ms": max(1, min(1_000, session_timeout_ms // 10)),
        # Added partitions are assigned when a member learns of them.
        "topic.metadata.refresh.interval.ms": 30_000,
        # How long a member may be busy, such as with finishing what is in flight, before it is removed from the group.
        "max.poll.interval.ms": max(300_000, session_timeout_ms),
        **options.librdkafka,
    }


def group_configuration(bootstrap: str, options: Options, group: str, reset: str) -> Configuration:
    """A group member that starts at the committed offsets, or else at `reset`, and commits explicitly."""
    return {**reader_configuration(bootstrap, options, None), "group.id": group, "auto.offset.reset": reset}
