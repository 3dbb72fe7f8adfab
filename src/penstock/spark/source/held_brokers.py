"""The broker of an embedded log lives as long as it has clients; Spark's own Kafka connector comes and goes.

Who builds a query on a log: URL holds a connection for the rest of the program, so that the broker's address stays what
it was when the query was planned.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import BrokerUnavailableError, ConnectionClosedError
from penstock.streams.connecting import connect
from penstock.streams.kafka.connection import Connection

_lock: Final = threading.Lock()
_held: Final[dict[str, Connection]] = {}


def held_broker(url: str, client: Mapping[str, Any]) -> Connection:
    """A connection to the embedded log at this URL, which must be absolute: the one that is held, or a new one."""
    with _lock:
        connection = _held.get(url)
        if connection is not None and not _can_be_used(connection):
            connection.close()
            connection = None
        if connection is None:
            connection = _held[url] = connect(url, **client)
            # Anew each time: before the end of the program they must be closed earlier than those that are forgotten.
            atexit.unregister(let_go_of_brokers)
            atexit.register(let_go_of_brokers)
        return connection


def _can_be_used(connection: Connection) -> bool:
    try:
        connection.flush()
    except (BrokerUnavailableError, ConnectionClosedError):
        return False
    return True


def let_go_of_brokers() -> None:
    """Close all connections that are held. Brokers without other clients end a little later."""
    with _lock:
        connections = list(_held.values())
        _held.clear()
    for connection in connections:
        connection.close()
