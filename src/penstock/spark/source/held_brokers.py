"""Connections that keep the brokers of embedded logs running.

The broker of an embedded log exits when it has no clients, and Spark's own Kafka connector does not stay connected. A
process that builds a query on a log: URL therefore holds a connection until it exits, so that the broker's address
stays the one that the query was planned with.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import BrokerUnavailableError, ConnectionClosedError
from penstock.streams.connecting import connect
from penstock.streams.connection import Connection
from penstock.streams.kafka.stream import KafkaStream, kafka_of

_lock: Final = threading.Lock()
_held: Final[dict[str, Connection]] = {}


def held_broker(url: str, client: Mapping[str, Any]) -> KafkaStream:
    """The held connection to the embedded log at this absolute URL, opened if necessary."""
    with _lock:
        connection = _held.get(url)
        if connection is not None and not _is_usable(connection):
            connection.close()
            connection = None
        if connection is None:
            connection = _held[url] = connect(url, **client)
            # Registered again each time: at exit, these must be closed before connections that were never closed.
            atexit.unregister(close_held_brokers)
            atexit.register(close_held_brokers)
        return kafka_of(connection)


def _is_usable(connection: Connection) -> bool:
    try:
        connection.flush()
    except (BrokerUnavailableError, ConnectionClosedError):
        return False
    return True


def close_held_brokers() -> None:
    """Close all held connections. Brokers without other clients exit a little later."""
    with _lock:
        connections = list(_held.values())
        _held.clear()
    for connection in connections:
        connection.close()
