"""A plain connection for a few requests, such as who is there, and how large the topics and disks are.

librdkafka keeps retrying to reach a broker, which is right for sending and reading. Finding out at once that a broker
is missing, or is not Kafka, takes one socket and one request. librdkafka cannot ask for sizes at all.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final, Self

from penstock.errors import BrokerUnavailableError, PenstockError, StreamError
from penstock.streams.kafka.security import PLAIN, Security
from penstock.streams.url import Host

PRODUCE: Final = 0
METADATA: Final = 3
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_CLIENT_ID: Final = b"penstock-plain"
_HEADER: Final = struct.Struct(">ihhih")


@dataclass(frozen=True, slots=True)
class LogDir:
    """A data folder of a broker, and its disk."""

    folder: str
    total_bytes: int
    free_bytes: int
    """-1: not known."""
    failed: bool


_OLDEST_PRODUCE: Final = 3
"""The version of Produce that takes records with headers: Kafka 0.11's."""


class NotKafkaError(PenstockError):
    """The answer is not Kafka's protocol."""


class PlainConnection:
    """One socket to one broker, one request at a time. Requests raise OSError and NotKafkaError."""

    def __init__(self, host: Host, timeout_s: float, security: Security = PLAIN) -> None:
        """Connect, and log in as `security` says. StreamError if the login is refused, ConfigError if `security` is
        not supported here."""
        self.host = host
        self._correlation_id = 0
        login = security.login()
        self.socket = socket.create_connection((host.name, host.port), timeout=timeout_s)
        try:
            self.socket = security.wrapped(self.socket, host.name)
            if login is not None:
                self._log_in(*login)
        except BaseException:
            self.close()
            raise

    def check_version(self) -> None:
        """Ask the broker for its versions. BrokerUnavailableError if it is too old."""
        newest = self.newest_versions().get(PRODUCE, 0)
        if newest < _OLDEST_PRODUCE:
            raise BrokerUnavailableError(
                f"the broker at {self.host} is too old: it takes no records with headers (Produce version {newest}). "
                "Apache Kafka 0.11 or newer is needed: upgrade it",
                retriable=False,
            )

    def newest_versions(self) -> dict[int, int]:
        """The newest version of each request that the broker knows, by the key of the request."""
        answer = self.ask(API_VERSIONS, version=0, body=b"")
        answer.number(">h")
        return {key: newest for key, _, newest in (answer.fields(">hhh") for _ in range(answer.count()))}

    def cluster_id(self) -> str | None:
        answer = self.ask(METADATA, version=2, body=struct.pack(">i", 0))
        for _ in range(answer.count()):
            answer.number(">i")
            answer.text()
            answer.number(">i")
            answer.text()
        return answer.text()

    def partition_sizes(self) -> dict[tuple[str, int], int]:
        """The size of each partition on this broker in bytes."""
        everything = struct.pack(">i", -1)
        answer = self.ask(DESCRIBE_LOG_DIRS, version=1, body=everything)
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

    def disks(self) -> list[LogDir]:
        no_topics = b"\x01\x00"  # an empty array, so that no sizes are sent, and no tagged fields
        answer = self.ask(DESCRIBE_LOG_DIRS, version=4, body=no_topics, is_flexible=True)
        answer.fields(">ih")
        disks = []
        for _ in range(answer.short_count()):
            code = answer.number(">h")
            folder = answer.short_text()
            for _ in range(answer.short_count()):  # some brokers send topics all the same
                answer.short_text()
                for _ in range(answer.short_count()):
                    answer.fields(">iqq?")
                    answer.skip_tagged()
                answer.skip_tagged()
            total_bytes, free_bytes = answer.fields(">qq")
            answer.skip_tagged()
            disks.append(LogDir(folder, total_bytes, free_bytes, failed=code != 0))
        return disks

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _log_in(self, user: str, password: str) -> None:
        mechanism = b"PLAIN"
        answer = self.ask(SASL_HANDSHAKE, version=1, body=struct.pack(">h", len(mechanism)) + mechanism)
        if answer.number(">h"):
            offered = ", ".join(answer.text() or "" for _ in range(answer.count()))
            raise StreamError(f"{self.host} does not support the SASL mechanism PLAIN, but {offered}")
        proof = f"\0{user}\0{password}".encode()
        answer = self.ask(SASL_AUTHENTICATE, version=0, body=struct.pack(">i", len(proof)) + proof)
        if answer.number(">h"):
            raise StreamError(f"{self.host} refused the login of user {user!r}: {answer.text()}")

    def ask(self, api_key: int, version: int, body: bytes, *, is_flexible: bool = False) -> Answer:
        """Send a request and wait for its answer. `is_flexible`: this version has tagged fields in its headers."""
        self._correlation_id += 1
        if is_flexible:
            body = b"\x00" + body  # no tagged fields in the header
        length = _HEADER.size - 4 + len(_CLIENT_ID) + len(body)
        header = _HEADER.pack(length, api_key, version, self._correlation_id, len(_CLIENT_ID))
        self.socket.sendall(header + _CLIENT_ID + body)
        (answer_bytes,) = struct.unpack(">i", self._receive(4))
        if not 4 <= answer_bytes <= MAX_ANSWER_BYTES:
            raise NotKafkaError(f"{self.host} answered with {answer_bytes} bytes, which is not Kafka's protocol")
        answer = Answer(self._receive(answer_bytes))
        if answer.number(">i") != self._correlation_id:
            raise NotKafkaError(f"{self.host} answered a request that was not sent")
        if is_flexible:
            answer.skip_tagged()
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
    """Parses the body of an answer from front to back."""

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
        return self._checked_count(self.number(">i"))

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(">B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value
            if shift > 28:
                raise NotKafkaError("the answer has a varint that is too long")

    def short_count(self) -> int:
        """The length of a compact array, as newer versions write it."""
        return self._checked_count(self.varint() - 1)

    def _checked_count(self, count: int) -> int:
        """An element takes at least one byte, so there cannot be more elements than bytes."""
        if count > len(self._body) - self._at:
            raise NotKafkaError(f"the answer promises {count} elements and ends too early")
        return max(count, 0)

    def short_text(self) -> str:
        return self._piece(max(0, self.varint() - 1))

    def skip_tagged(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self._piece(self.varint())

    def text(self) -> str | None:
        length = self.number(">h")
        if length < 0:
            return None
        return self._piece(length)

    def _piece(self, length: int) -> str:
        if length > len(self._body) - self._at:
            raise NotKafkaError("the answer ends too early")
        piece = self._body[self._at : self._at + length]
        self._at += length
        return piece.decode(errors="replace")
