"""Requests about transactions that another producer has opened: look them up, commit them, abort them.

librdkafka offers these requests only for the transaction of its own producer. Here they go to the transaction
coordinator directly. EndTxn is sent in version 2, which does not change the epoch, so it can be repeated.
"""

from __future__ import annotations

import functools
import random
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError

from penstock.errors import NotAllowedError, StreamError
from penstock.streams.kafka.plain import METADATA, Answer, NotKafkaError, PlainConnection
from penstock.streams.kafka.security import Security
from penstock.streams.options import Options
from penstock.streams.url import Host, kafka_url

_FIND_COORDINATOR: Final = 10
_INIT_PRODUCER_ID: Final = 22
_END_TXN: Final = 26
_DESCRIBE_TRANSACTIONS: Final = 65
_LIST_TRANSACTIONS: Final = 66
_TRANSACTION_COORDINATOR: Final = 1
"""The kind of coordinator to find."""
_ONGOING: Final = "Ongoing"

_ANSWER_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.5
_RETRIED: Final = frozenset(
    {
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.UNKNOWN,
    }
)
_ENDED: Final = frozenset(
    {
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Answers to EndTxn(commit) if the transaction was aborted, or if its transactional id was taken after its end."""
_NOT_ALLOWED: Final = frozenset(
    {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)

Ask = Callable[[PlainConnection], tuple[int, Any]]
"""Sends one request; returns the error code of the answer and what else is of interest in it."""


@dataclass(frozen=True, slots=True)
class TransactionOwner:
    """The newest producer of a transactional id."""

    producer_id: int
    epoch: int
    is_open: bool
    """Whether it has an open transaction."""


class TransactionCoordinators:
    """Asks the coordinators of transactional ids. Used by one thread.

    Requests are retried for `timeout_s`, and then raise StreamError. They raise NotAllowedError if an ACL forbids them.
    """

    def __init__(self, bootstrap: str, options: Options, timeout_s: float) -> None:
        """Raises ConfigError for a login that is supported only by librdkafka."""
        brokers = kafka_url(f"kafka://{bootstrap}")
        assert brokers is not None, "a bootstrap address has hosts"
        self._bootstrap = brokers.hosts
        self._security = Security(options.librdkafka)
        self._security.login()
        self._timeout_s = timeout_s
        self._connections: dict[Host, PlainConnection] = {}

    def owner(self, transactional_id: str) -> TransactionOwner:
        def ask(connection: PlainConnection) -> tuple[int, TransactionOwner]:
            encoded = transactional_id.encode()
            body = b"\x02" + _varint(len(encoded) + 1) + encoded + b"\x00"  # an array of one, and no tagged fields
            answer = connection.ask(_DESCRIBE_TRANSACTIONS, 0, body, is_flexible=True)
            answer.number(">i")
            answer.short_count()
            code = answer.number(">h")
            answer.short_text()
            state = answer.short_text()
            _, _, producer_id, epoch = answer.fields(">iqqh")
            return code, TransactionOwner(producer_id, epoch, state == _ONGOING)

        code, owner = self._of_coordinator("look up", transactional_id, ask)
        _check(code, f"the transaction of {transactional_id!r} cannot be looked up")
        assert isinstance(owner, TransactionOwner)
        return owner

    def commit(self, transactional_id: str, producer_id: int, epoch: int) -> bool:
        """Commit an open transaction. Returns True also if it is committed already.

        False: it is no longer open. It was aborted, or it was committed and its transactional id was taken since.
        """

        def ask(connection: PlainConnection) -> tuple[int, None]:
            body = _text(transactional_id) + struct.pack(">qh?", producer_id, epoch, True)
            answer = connection.ask(_END_TXN, 2, body)
            answer.number(">i")
            return answer.number(">h"), None

        code, _ = self._of_coordinator("commit", transactional_id, ask)
        if code in _ENDED:
            return False
        _check(code, f"the transaction of {transactional_id!r} cannot be committed")
        return True

    def fence(self, transactional_id: str) -> None:
        """Abort an open transaction, wait for one that is being ended, and fence the producer."""

        def ask(connection: PlainConnection) -> tuple[int, None]:
            body = _text(transactional_id) + struct.pack(">i", round(1000 * self._timeout_s))
            answer = connection.ask(_INIT_PRODUCER_ID, 1, body)
            answer.number(">i")
            return answer.number(">h"), None

        code, _ = self._of_coordinator("abort", transactional_id, ask)
        _check(code, f"the transaction of {transactional_id!r} cannot be aborted")

    def open_ids(self, prefix: str) -> list[str]:
        """The transactional ids with this prefix that have an open transaction."""
        _, brokers = self._retried("list the brokers", lambda: _brokers(self._first()))
        found = []
        for host in brokers:
            code, ids = self._retried("list transactions", functools.partial(self._open_ids_at, host))
            _check(code, "open transactions cannot be listed")
            found += [each for each in ids if each.startswith(prefix)]
        return found

    def is_supported(self) -> bool:
        """Whether the brokers know all of these requests, as Kafka does since 3.0."""

        def ask() -> tuple[int, bool]:
            connection = self._first()
            try:
                _open_ids(connection)
            except NotKafkaError:  # a broker closes the connection after a request that it does not know
                self.close()
                return 0, False
            return 0, True

        return bool(self._retried("list transactions", ask)[1])

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def _open_ids_at(self, host: Host) -> tuple[int, list[str]]:
        return _open_ids(self._to(host))

    def _of_coordinator(self, what: str, transactional_id: str, ask: Ask) -> tuple[int, Any]:
        def find_and_ask() -> tuple[int, Any]:
            code, host = _coordinator(self._first(), transactional_id)
            return (code, None) if code else ask(self._to(host))

        return self._retried(f"{what} the transaction of {transactional_id!r}", find_and_ask)

    def _retried(self, what: str, ask: Callable[[], tuple[int, Any]]) -> tuple[int, Any]:
        """The first answer that a retry would not change."""
        deadline_s = time.monotonic() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                code, answer = ask()
                if code not in _RETRIED:
                    return code, answer
                problem = KafkaError(code).str()
            except (OSError, NotKafkaError) as error:
                self.close()
                problem = str(error)
            if time.monotonic() > deadline_s:
                raise StreamError(f"could not {what} within {self._timeout_s:g} s: {problem}")
            time.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _first(self) -> PlainConnection:
        """A connection to any of the brokers."""
        if self._connections:
            return next(iter(self._connections.values()))
        problem: OSError | None = None
        for host in self._bootstrap:
            try:
                return self._to(host)
            except OSError as error:
                problem = error
        assert problem is not None, "there is at least one host"
        raise problem

    def _to(self, host: Host) -> PlainConnection:
        if host not in self._connections:
            self._connections[host] = PlainConnection(host, min(_ANSWER_S, self._timeout_s), self._security)
        return self._connections[host]


def _brokers(connection: PlainConnection) -> tuple[int, list[Host]]:
    answer = connection.ask(METADATA, 2, struct.pack(">i", 0))
    brokers = []
    for _ in range(answer.count()):
        answer.number(">i")
        brokers.append(_host(answer))
        answer.text()
    return 0, brokers


def _coordinator(connection: PlainConnection, transactional_id: str) -> tuple[int, Host]:
    body = _text(transactional_id) + struct.pack(">b", _TRANSACTION_COORDINATOR)
    answer = connection.ask(_FIND_COORDINATOR, 1, body)
    answer.number(">i")
    code = answer.number(">h")
    answer.text()
    answer.number(">i")
    return code, _host(answer)


def _open_ids(connection: PlainConnection) -> tuple[int, list[str]]:
    state = _ONGOING.encode()
    body = b"\x02" + _varint(len(state) + 1) + state + b"\x01\x00"  # in this state, of any producer, no tagged fields
    answer = connection.ask(_LIST_TRANSACTIONS, 0, body, is_flexible=True)
    answer.number(">i")
    code = answer.number(">h")
    for _ in range(answer.short_count()):
        answer.short_text()
    ids = []
    for _ in range(answer.short_count()):
        ids.append(answer.short_text())
        answer.number(">q")
        answer.short_text()
        answer.skip_tagged()
    return code, ids


def _host(answer: Answer) -> Host:
    name = answer.text() or ""
    return Host(name, answer.number(">i"))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _check(code: int, what: str) -> None:
    if code in _NOT_ALLOWED:
        raise NotAllowedError(f"{what}: {KafkaError(code).str()}; allow this client to describe and write that id")
    if code:
        raise StreamError(f"{what}: {KafkaError(code).str()}")
