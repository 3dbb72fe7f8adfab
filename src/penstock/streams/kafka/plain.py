"""A plain connection that speaks just enough of the protocol to ask who is there, and how large its topics are.

librdkafka tries again and again to reach a broker, which is right for sending and reading; to learn at once that nobody
is there, or somebody else, takes one socket and one request.
"""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock.errors import BrokerUnavailableError, PenstockError
from penstock.streams.url import Host, KafkaUrl

if TYPE_CHECKING:
    from penstock.streams.options import Options

METADATA: Final = 3
DESCRIBE_LOG_DIRS: Final = 35
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_CLIENT_ID: Final = b"penstock-plain"
_HEADER: Final = struct.Struct(">ihhih")


class NotKafkaError(PenstockError):
    """What answers does not speak Kafka's protocol."""


class PlainConnection:
    """One socket to one broker, one request at a time. OSError and NotKafkaError are for the caller to explain."""

    def __init__(self, host: Host, timeout_s: float) -> None:
        self.host = host
        self._correlation_id = 0
        self.socket = socket.create_connection((host.name, host.port), timeout=timeout_s)

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


def check_reachable(url: KafkaUrl, options: Options) -> None:
    """Return once one of the brokers has answered; BrokerUnavailableError says what was tried and what to do."""
    deadline_s = time.monotonic() + options.connect_timeout_s
    problems = []
    for host in url.hosts:
        try:
            with PlainConnection(host, max(0.1, deadline_s - time.monotonic())) as connection:
                if str(options.librdkafka.get("security.protocol", "plaintext")).lower() == "plaintext":
                    connection.cluster_id()
                return
        except (OSError, NotKafkaError) as error:
            problems.append(_explain(host, error))
    raise BrokerUnavailableError(
        f"{'; '.join(problems)}. Start a broker there with: penstock serve --listen {url.hosts[0]}; "
        "or use log:./data, which starts its own"
    )


def _explain(host: Host, error: OSError | NotKafkaError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name of {host} is not known"
    if isinstance(error, TimeoutError):
        return f"{host} does not answer"
    if isinstance(error, OSError):
        return f"nothing answers at {host} ({error.strerror or error})"
    return f"{error}: no plaintext Kafka broker is behind it"
