"""The console's connection to the stream: opened when first needed, checked before use, and renewed when it is lost.

A request while the broker is away fails within seconds, and at once if that was just seen. A broker that accepts
connections counts as available, however slowly it answers: pages then show how long they have been waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from penstock.abc import Admin, Feature, GroupAdmin, Reachable
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, PenstockError
from penstock.model.pointer_forms import PointerText
from penstock.streams import Connection
from penstock.streams.capability import capability
from penstock.streams.connecting import check_url, open_backend, pointer_text_at
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, is_memory, without_password

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "penstock-console"
ANSWER_S: Final = 30.0
"""How long the broker may take for a request. The client may make two or three requests in turn."""
DELIVERY_S: Final = 60.0
_REACHED_S: Final = 2.0
"""How long the broker may take to accept a connection."""
_STARTED_S: Final = 30.0
"""The broker of a log: folder may have to be started, and to recover the folder first."""
_THERE_S: Final = 0.05
_AWAY_S: Final = 1.0
"""How long the broker counts as available, or away, once that was seen."""
_CLOSED_S: Final = 3.0


class Link:
    """One connection for all requests of the console. Thread-safe."""

    def __init__(self, url: str) -> None:
        check_url(url)
        if is_memory(url):
            raise ConfigError(
                f"the console does not support {without_password(url)}: use log:FOLDER or kafka://HOST:PORT"
            )
        self.url = without_password(url)
        """Without a password, for display."""
        self._given = url
        self._is_log = scheme_of(url) == "log"
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._seen_s = float("-inf")
        self._failure: BrokerUnavailableError | None = None
        self._is_closed = False
        self.pointer_text: PointerText = pointer_text_at(url)
        """How the stream's pointers are written, also while it is away."""

    def connection(self) -> Connection:
        """The connection, with a broker at its other end. Raises BrokerUnavailableError soon when there is none."""
        with self._lock:
            if self._is_closed:
                raise BrokerUnavailableError("the console is closing")
            seen_s = time.monotonic() - self._seen_s
            if self._failure is not None and seen_s < _AWAY_S:
                raise self._failure
            if self._failure is None and self._connection is not None and seen_s < _THERE_S:
                return self._connection
            try:
                self._connection = self._reached()
                self._failure = None
            except BrokerUnavailableError as error:
                self._failure = error
                raise
            finally:
                self._seen_s = time.monotonic()
            return self._connection

    @property
    def is_counted(self) -> bool:
        """Whether pointers count records. Raises BrokerUnavailableError."""
        return Feature.OFFSETS in self.connection().features

    def topics(self) -> Admin:
        """Topic requests, with shorter timeouts than a program's."""
        return self.connection().admin(ANSWER_S)

    def groups(self) -> GroupAdmin:
        return self.connection().group_admin(ANSWER_S)

    def look_again(self) -> None:
        """Forget whether the broker is available, after an error."""
        with self._lock:
            self._seen_s = float("-inf")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._let_go()

    def _reached(self) -> Connection:
        if self._connection is not None:
            try:
                self._connection.check_there(_REACHED_S)
                return self._connection
            except BrokerUnavailableError:
                if not self._is_log:
                    raise  # the connection is still the right one once the broker is back
                self._let_go()
        backend = open_backend(self._given, self._options())
        try:
            reachable = capability(backend, Reachable)
            if reachable is not None:
                reachable.check_there(_REACHED_S)
                reachable.check_reachable()
        except BaseException:
            backend.close()
            raise
        return Connection(backend)

    def _options(self) -> dict[str, Any]:
        """Only Kafka's client is told to be quick; others are as their URL says."""
        if scheme_of(self._given) not in KAFKA_SCHEMES:
            return {}
        return {
            "client_id": CLIENT_ID,
            "connect_timeout_s": _STARTED_S if self._is_log else ANSWER_S,
            "delivery_timeout_s": DELIVERY_S,
            "librdkafka": {"socket.timeout.ms": round(1000 * DELIVERY_S)},
        }

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close(timeout_s=_CLOSED_S)
        except (DeliveryError, PenstockError) as error:
            logger.warning("the connection to %s was closed during a request: %s", self.url, error)
