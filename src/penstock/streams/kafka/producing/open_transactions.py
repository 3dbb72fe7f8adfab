"""Requests about transactions that another producer has opened: look them up, commit them, abort them.

librdkafka offers these requests only for the transaction of its own producer. Here they go to the transaction
coordinator directly. EndTxn is sent in version 2, which does not change the epoch, so it can be repeated.
"""

from __future__ import annotations

import contextlib
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
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
_TRIES: Final = 4
"""A broker that does not answer takes at most this part of the time, which leaves the rest for others."""
_SHORTEST_ANSWER_S: Final = 0.5
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
    A broker that fails or hangs is asked last from then on.
    """

    def __init__(self, bootstrap: str, options: Options, timeout_s: float) -> None:
        """Raises ConfigError for a login that is supported only by librdkafka."""
        brokers = kafka_url(f"kafka://{bootstrap}")
        assert brokers is not None, "a bootstrap address has hosts"
        self._hosts = list(brokers.hosts)
        """Who is asked which broker coordinates what, the best one first: the given brokers, and those met since."""
        self._security = Security(options.librdkafka)
        self._security.login()
        self._timeout_s = timeout_s
        self._answer_s = min(_ANSWER_S, max(_SHORTEST_ANSWER_S, timeout_s / _TRIES))
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

    def open_ids(self, prefix: str, on_unreachable: Callable[[str], None] | None = None) -> list[str]:
        """The transactional ids with this prefix that have an open transaction.

        A broker that does not answer is given up after one attempt. It may coordinate more of them: `on_unreachable`
        is told which broker and why. Without `on_unreachable`, StreamError is raised.
        """
        found, unreachable = self._listed(self._brokers())
        if unreachable:
            # Once the cluster has given a broker up, others coordinate what it did, perhaps only since they were asked.
            brokers = self._brokers()
            if unreachable.keys().isdisjoint(brokers):
                found, unreachable = self._listed(brokers)
        for host, problem in unreachable.items():
            what = f"broker {host} did not say which transactions are open there: {problem}"
            if on_unreachable is None:
                raise StreamError(what)
            on_unreachable(what)
        return [each for each in found if each.startswith(prefix)]

    def is_supported(self) -> bool:
        """Whether the brokers know all of these requests, as Kafka does since 3.0."""

        def ask() -> tuple[int, bool]:
            with self._any() as connection:
                known = connection.newest_versions()
            return 0, _DESCRIBE_TRANSACTIONS in known and _LIST_TRANSACTIONS in known

        return bool(self._retried("ask which requests the brokers know", ask)[1])

    def bootstrap(self) -> str:
        """Addresses of brokers. The first one has just answered, so that whoever begins with it need not wait."""
        self._brokers()
        return ",".join(map(str, self._hosts))

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def _brokers(self) -> list[Host]:
        """Those that are in the cluster now."""

        def ask() -> tuple[int, list[Host]]:
            with self._any() as connection:
                return _brokers(connection)

        brokers: list[Host] = self._retried("list the brokers", ask)[1]
        for host in brokers:
            self._meet(host)
        return brokers

    def _listed(self, brokers: Sequence[Host]) -> tuple[list[str], dict[Host, str]]:
        """The open transactions that these brokers coordinate, and the brokers that cannot be asked, with reasons."""
        found: list[str] = []
        unreachable: dict[Host, str] = {}
        for host in brokers:

            def ask(host: Host = host) -> tuple[int, list[str]]:
                try:
                    # One that was idle may be closed, which says nothing about its broker.
                    with PlainConnection(host, self._answer_s, self._security) as connection:
                        return _open_ids(connection)
                except (OSError, NotKafkaError) as error:
                    unreachable[host] = str(error)
                    return 0, []

            code, ids = self._retried("list transactions", ask)
            _check(code, "open transactions cannot be listed")
            found += ids
        return found, unreachable

    def _of_coordinator(self, what: str, transactional_id: str, ask: Ask) -> tuple[int, Any]:
        def find_and_ask() -> tuple[int, Any]:
            with self._any() as connection:
                code, host = _coordinator(connection, transactional_id)
            if code:
                return code, None
            with self._at(host) as connection:
                return ask(connection)

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
                problem = str(error)
            if time.monotonic() > deadline_s:
                raise StreamError(f"could not {what} within {self._timeout_s:g} s: {problem}")
            time.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _any(self) -> contextlib.AbstractContextManager[PlainConnection]:
        """A connection to the best broker to ask what any broker knows."""
        return self._at(self._hosts[0])

    @contextlib.contextmanager
    def _at(self, host: Host) -> Iterator[PlainConnection]:
        """A connection to a broker. If it fails, it is closed, and that broker is asked last from then on."""
        self._meet(host)
        try:
            if host not in self._connections:
                self._connections[host] = PlainConnection(host, self._answer_s, self._security)
            yield self._connections[host]
        except (OSError, NotKafkaError) as error:
            if host in self._connections:
                self._connections.pop(host).close()
            self._hosts.remove(host)
            self._hosts.append(host)
            raise OSError(f"{host}: {error}") from error

    def _meet(self, host: Host) -> None:
        if host not in self._hosts:
            self._hosts.append(host)


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
