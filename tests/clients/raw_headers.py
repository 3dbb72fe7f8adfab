"""Records whose headers have any bytes for names, which Kafka takes and few clients will send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from tests.clients.wire import Connection

RawHeaders = list[tuple[bytes, bytes | None]]

LATIN = "größe".encode("latin-1")
"""A name as a program writes it that does not know of UTF-8."""


class RawName(str):
    """A name that is encoded as other bytes: it is written as their digits."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return bytes.fromhex(self)


@dataclass(frozen=True, slots=True)
class _Address:
    """A server of which no more is known."""

    bootstrap: str

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])


def send_raw(bootstrap: str, topic: str, records: Iterable[tuple[bytes, RawHeaders]]) -> None:
    """Append values with headers to partition 0, in one batch."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset, (value, headers) in enumerate(records):
        builder.append(
            offset, 1_700_000_000_000, None, value, [(RawName(name.hex()), content) for name, content in headers]
        )
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(builder.build())}]}]
    with Connection(_Address(bootstrap)) as connection:
        answer = connection.call("produce", 9, acks=-1, timeout=5000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
