"""The console's way to the stream: made when it is first needed, looked at before use, and made anew when it is lost.

Whoever asks while the broker is away is told so within seconds, and at once if somebody has just found out.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, PenstockError
from penstock.streams import Connection, connect
from penstock.streams.kafka.groups import GroupAdministration
from penstock.streams.kafka.reaching import check_there
from penstock.streams.kafka.security import Security
from penstock.streams.kafka.topics import TopicAdministration
from penstock.streams.url import KafkaUrl, LogUrl, MemoryUrl, parse_url, without_password
from penstock.streams.url_settings import settings_with

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "penstock-console"
ANSWER_S: Final = 5.0
"""How long the broker may take over a question."""
DELIVERY_S: Final = 10.0
_REACHED_S: Final = 2.0
_LET_IN_S: Final = 10.0
"""TLS and a login go to and fro several times before anything is answered."""
_STARTED_S: Final = 30.0
"""The broker of a log: folder may have to be started, and to recover the folder first."""
_THERE_S: Final = 0.05
_AWAY_S: Final = 1.0
"""How long it is believed that the broker is there, or away, once that was seen."""
_CLOSED_S: Final = 3.0


class Link:
    """One connection for all that people ask of the console. Any thread may use it."""

    def __init__(self, url: str) -> None:
        where = parse_url(url)
        if isinstance(where, MemoryUrl):
            raise ConfigError(
                f"the console cannot look into {without_password(url)}: give it log:FOLDER or kafka://HOST:PORT"
            )
        self.url = without_password(url)
        """Fit to be shown."""
        self._given = url
        self._where = where
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._seen_s = float("-inf")
        self._failure: BrokerUnavailableError | None = None
        self._is_closed = False

    def connection(self) -> Connection:
        """The connection, with a broker at its other end. BrokerUnavailableError soon when there is none."""
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

    def topics(self) -> TopicAdministration:
        """Requests about topics, which give up sooner than a program's."""
        return TopicAdministration(self.connection().administration.admin, ANSWER_S)

    def groups(self) -> GroupAdministration:
        return GroupAdministration(self.topics())

    def look_again(self) -> None:
        """Something went wrong: believe nothing of what was seen before."""
        with self._lock:
            self._seen_s = float("-inf")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._let_go()

    def _reached(self) -> Connection:
        if self._connection is not None:
            try:
                _check_there(self._connection)
                self._connection.stream("").close()  # raises when its broker is back elsewhere
                return self._connection
            except BrokerUnavailableError:
                if isinstance(self._where, KafkaUrl):
                    raise  # it is still the right connection once the broker is back
                self._let_go()
        return connect(
            self._given,
            client_id=CLIENT_ID,
            connect_timeout_s=self._connect_timeout_s(),
            delivery_timeout_s=DELIVERY_S,
            librdkafka={"socket.timeout.ms": round(1000 * DELIVERY_S)},
        )

    def _connect_timeout_s(self) -> float:
        if isinstance(self._where, LogUrl):
            return _STARTED_S
        return _REACHED_S if Security(settings_with(self._where)).is_plain else _LET_IN_S

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close(timeout=_CLOSED_S)
        except (DeliveryError, PenstockError) as error:
            logger.warning("the connection to %s was closed with something under way: %s", self.url, error)


def _check_there(connection: Connection) -> None:
    """BrokerUnavailableError unless somebody answers; who wants a login has let the connection in before."""
    brokers = parse_url(f"kafka://{connection.bootstrap}")
    assert isinstance(brokers, KafkaUrl)
    check_there(brokers.hosts, _REACHED_S, is_plain=Security(connection.options.librdkafka).is_plain)
