"""The requests that the tests of connections send, and what they look at in the process behind them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.batches import LENGTH_AT, batch, values_in
from tests.clients.names import fresh
from tests.servers import Server

PRODUCE: Final = ("produce", 9)
FETCH: Final = ("fetch", 12)
METADATA: Final = ("metadata", 12)
LIST_OFFSETS: Final = ("list_offsets", 6)
MEBIBYTE: Final = 1 << 20
LENGTH_PREFIX_BYTES: Final = 12


def create_topic(server: Server, **settings: str) -> str:
    """A new topic of one partition."""
    name = fresh()
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    new = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    (created,) = wire.call(server, "create_topics", 7, topics=[new], timeout=10_000).topics
    assert created.error_code is ErrorCode.none
    return name


def produce_fields(topic: str, values: Sequence[bytes], acks: int = -1) -> dict[str, Any]:
    part = {"index": 0, "records": batch(values)}
    return {"acks": acks, "timeout": 10_000, "topic_data": [{"name": topic, "partition_data": [part]}]}


def produce(server: Server, topic: str, values: Sequence[bytes]) -> None:
    """Send the values in one batch and wait until they are acknowledged."""
    answer = wire.call(server, *PRODUCE, **produce_fields(topic, values))
    assert produced(answer)[0] is ErrorCode.none


def produced(answer: Any) -> tuple[ErrorCode, int]:
    """Error and base offset in the answer to a Produce request for one partition."""
    ((response,),) = [topic.partition_responses for topic in answer.responses]
    return response.error_code, response.base_offset


def fetch_fields(topic: str, offset: int, *, wait_ms: int = 0, max_bytes: int = MEBIBYTE) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    wanted = {"topic": topic, "partitions": [part]}
    return {"replica_id": -1, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": max_bytes, "topics": [wanted]}


def fetched(answer: Any) -> Any:
    """The one partition in the answer to a Fetch request."""
    ((partition,),) = [topic.partitions for topic in answer.responses]
    return partition


def whole_values(answer: Any) -> list[tuple[int, bytes]]:
    """Offset and value of every record in the answer to a Fetch request; its last batch may be cut, and is left out."""
    records = fetched(answer).records or b""
    end = 0
    while end + LENGTH_PREFIX_BYTES <= len(records):
        (length,) = struct.unpack_from(">i", records, end + LENGTH_AT)
        if end + LENGTH_PREFIX_BYTES + length > len(records):
            break
        end += LENGTH_PREFIX_BYTES + length
    return values_in(records[:end])


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


def resident_bytes(pid: int) -> int:
    """The memory that a process holds now."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
