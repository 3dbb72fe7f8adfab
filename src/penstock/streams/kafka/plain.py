"""A plain connection that speaks just enough of the protocol to ask who is there, and how large its topics are.

librdkafka tries again and again to reach a broker, which is right for sending and reading; to learn at once that nobody
is there, or somebody else, takes one socket and one request. The sizes of topics librdkafka cannot ask for at all.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Final, Self

from penstock.errors import PenstockError, StreamError
from penstock.streams.kafka.security import PLAIN, Login, Security
from penstock.streams.url import Host

METADATA: Final = 3
SASL_HANDSHAKE: Final = 17
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_CLIENT_ID: Final = b"penstock-plain"
_HEADER: Final = struct.Struct(">ihhih")


class NotKafkaError(PenstockError):
    """What answers does not speak Kafka's protocol."""


class PlainConnection:
    """One socket to one broker, one request at a time. OSError and NotKafkaError are for the caller to explain."""

    def __init__(self, host: Host, timeout_s: float, security: Security = PLAIN) -> None:
        """StreamError when the broker does not let us in, ConfigError when `security` is more than is known here."""
        self.host = host
        self._correlation_id = 0
        login = security.login()
        self.socket = socket.create_connection((host.name, host.port), timeout=timeout_s)
        try:
            self.socket = security.wrapped(self.socket, host.name)
            if login is not None:
                self._log_in(login)
        except BaseException:
            self.close()
            raise

    def cluster_id(self) -> str | None:
        """The name of the cluster that the broker belongs to."""
        answer = self._ask(METADATA, version=2, body=struct.pack(">i", 0))
        for _ in range(answer.count()):
            answer.number(">i")
            answer.text()
            answer.number(">i")
            answer.text()
        return answer.text()

    def partition_sizes(self) -> dict[tuple[str, int], int]:
        """How many bytes each partition takes on this broker."""
        everything = struct.pack(">i", -1)
        answer = self._ask(DESCRIBE_LOG_DIRS, version=1, body=everything)
        answer.number(">i")
        sizes: dict[tuple[str, int], int] = {}
        for _ in range(answer.count()):
            answer.number(">h")
            answer.text()
            for _ in range(answer.count()):
                topic = answer.text() or ""
                for _ in range(answer.count()):
                    partition, size_bytes, _, is_future = answer.fields(">iqq?")
                    if not is_future:
                        sizes[topic, partition] = sizes.get((topic, partition), 0) + size_bytes
        return sizes

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _log_in(self, login: Login) -> None:
        mechanism = b"PLAIN"
        answer = self._ask(SASL_HANDSHAKE, version=1, body=struct.pack(">h", len(mechanism)) + mechanism)
        if answer.number(">h"):
            offered = ", ".join(answer.text() or "" for _ in range(answer.count()))
            raise StreamError(f"{self.host} does not take the SASL mechanism PLAIN, but {offered}")
        proof = f"\0{login.user}\0{login.password}".encode()
        answer = self._ask(SASL_AUTHENTICATE, version=0, body=struct.pack(">i", len(proof)) + proof)
        if answer.number(">h"):
            raise StreamError(f"{self.host} does not let the user {login.user!r} in: {answer.text()}")

    def _ask(self, api_key: int, version: int, body: bytes) -> Answer:
        self._correlation_id += 1
        length = _HEADER.size - 4 + len(_CLIENT_ID) + len(body)
        header = _HEADER.pack(length, api_key, version, self._correlation_id, len(_CLIENT_ID))
        self.socket.sendall(header + _CLIENT_ID + body)
        (answer_bytes,) = struct.unpack(">i", self._receive(4))
        if not 4 <= answer_bytes <= MAX_ANSWER_BYTES:
            raise NotKafkaError(f"{self.host} answered with {answer_bytes} bytes, which no broker would")
        answer = Answer(self._receive(answer_bytes))
        if answer.number(">i") != self._correlation_id:
            raise NotKafkaError(f"{self.host} answered a question that was not asked")
        return answer

    def _receive(self, count: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            piece = self.socket.recv(min(count - len(pieces), 1 << 20))
            if not piece:
                raise NotKafkaError(f"{self.host} closed the connection instead of answering")
            pieces += piece
        return bytes(pieces)


class Answer:
    """The body of an answer, read from its front."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def fields(self, layout: str) -> tuple[int, ...]:
        try:
            found: tuple[int, ...] = struct.unpack_from(layout, self._body, self._at)
        except struct.error:
            raise NotKafkaError("the answer ends too early") from None
        self._at += struct.calcsize(layout)
        return found

    def number(self, layout: str) -> int:
        return self.fields(layout)[0]

    def count(self) -> int:
        """How many elements follow. No element is shorter than a byte, so more than there are bytes is a lie."""
        count = self.number(">i")
        if count > len(self._body) - self._at:
            raise NotKafkaError(f"the answer promises {count} elements and ends too early")
        return max(count, 0)

    def text(self) -> str | None:
        length = self.number(">h")
        if length < 0:
            return None
        if length > len(self._body) - self._at:
            raise NotKafkaError("the answer ends too early")
        piece = self._body[self._at : self._at + length]
        self._at += length
        return piece.decode(errors="replace")
