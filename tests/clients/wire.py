"""The Kafka protocol, byte by byte: any request in any version, and its answer, over a socket of our own.

kio has the schemas of all messages that Apache Kafka 4 knows. A request is given as plain values by kio's names of its
fields: times as milliseconds, nested structures as dicts, arrays as lists. What is not given has the protocol's
default, or is zero or empty.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import socket
import struct
import uuid
from collections.abc import Mapping
from types import NoneType, TracebackType
from typing import Any, Final, Self, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from tests.clients.waiting import eventually
from tests.servers import Server

TIMEOUT_S: Final = 20.0
API_KEYS: Final[Mapping[str, int]] = {name: key for key, name in api_key_map.items()}
CLIENT_ID: Final = "wire-test"


class ConnectionClosed(Exception):
    """The server has closed the connection instead of answering."""


class Connection:
    """One connection to a server. Answers are read in the order of the requests, as the protocol has it."""

    def __init__(self, server: Server, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)
        self._correlation_id = 0

    def call(self, api: str, version: int, **fields: Any) -> Any:
        """Send a request and decode its answer, every byte of it."""
        correlation_id = self.send(api, version, **fields)
        return decode(api, version, self.receive(), correlation_id)

    def send(self, api: str, version: int, **fields: Any) -> int:
        """Send a request without waiting for the answer. Answers its correlation id."""
        self._correlation_id += 1
        self.send_frame(encode(api, version, self._correlation_id, fields))
        return self._correlation_id

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """The next frame, without its length."""
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def is_closed_by_server(self) -> bool:
        """Wait for what comes next: True if it is the end of the connection, False if it is an answer."""
        try:
            self.receive()
        except ConnectionClosed:
            return True
        return False

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self.socket.recv(count - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise ConnectionClosed(f"after {len(data)} of {count} bytes")
            data += piece
        return bytes(data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def call(server: Server, api: str, version: int, **fields: Any) -> Any:
    """One request on a connection of its own."""
    with Connection(server) as connection:
        return connection.call(api, version, **fields)


def wait_for_leader(connection: Connection, topic: str, timeout_s: float = TIMEOUT_S) -> None:
    """Return once the new topic can be written and read: Apache Kafka answers its creation a moment too early."""

    def is_served() -> bool:
        parts = [{"partition_index": 0, "timestamp": -1}]
        answer = connection.call("list_offsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": parts}])
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code is ErrorCode.none

    eventually(f"{topic} is served", is_served, timeout_s)


def partition_size_bytes(server: Server, topic: str) -> int:
    """How much partition 0 takes on disk, as the broker tells."""
    (folder,) = call(server, "describe_log_dirs", 4, topics=[{"topic": topic, "partitions": [0]}]).results
    (part,) = folder.topics[0].partitions
    size: int = part.partition_size
    return size


def versions_of(api: str) -> list[int]:
    """The versions of an API that the protocol has."""
    return sorted(schema_name_map[api])


def encode(api: str, version: int, correlation_id: int, fields: Mapping[str, Any]) -> bytes:
    """A request with its header, without the length in front."""
    kind: Any = load_request_schema(API_KEYS[api], version)
    header_kind = kind.__header_schema__
    header = {
        "request_api_key": API_KEYS[api],
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": CLIENT_ID,
    }
    buffer = io.BytesIO()
    entity_writer(header_kind)(buffer, build(header_kind, header))
    entity_writer(kind)(buffer, build(kind, fields))
    return buffer.getvalue()


def decode(api: str, version: int, frame: bytes, correlation_id: int) -> Any:
    """An answer. Fails unless it is for this request and ends where the frame ends."""
    kind: Any = load_response_schema(API_KEYS[api], version)
    header_kind: Any = kind.__header_schema__
    header, header_length = entity_reader(header_kind)(frame, 0)
    assert header.correlation_id == correlation_id
    answer, length = entity_reader(kind)(frame, header_length)
    assert header_length + length == len(frame), f"{len(frame) - header_length - length} bytes follow the answer"
    return answer


def build(kind: Any, fields: Mapping[str, Any]) -> Any:
    """An entity of kio from plain values. A name that this version does not have is a mistake of the test."""
    known = {field.name: field for field in dataclasses.fields(kind)}
    assert set(fields) <= set(known), f"{kind.__name__} v{kind.__version__} has no {set(fields) - set(known)}"
    values = {}
    for name, field in known.items():
        if name in fields:
            values[name] = _value(field, fields[name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            values[name] = _empty(field)
    return kind(**values)


def only_known(api: str, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the fields that this version has, down to the innermost. Each name must exist in some version."""
    return _only_known(load_request_schema(API_KEYS[api], version), _names_of(api), fields)


def _only_known(kind: Any, anywhere: frozenset[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    assert set(fields) <= anywhere, f"no version of {kind.__name__} has {set(fields) - anywhere}"
    kept = {}
    for field in dataclasses.fields(kind):
        if field.name in fields:
            value = fields[field.name]
            inner = _inner_type(field.type)
            if dataclasses.is_dataclass(inner) and value is not None:
                if isinstance(value, Mapping):
                    value = _only_known(inner, anywhere, value)
                else:
                    value = [_only_known(inner, anywhere, item) for item in value]
            kept[field.name] = value
    return kept


@functools.cache
def _names_of(api: str) -> frozenset[str]:
    names: set[str] = set()
    kinds: list[Any] = [load_request_schema(API_KEYS[api], version) for version in versions_of(api)]
    while kinds:
        for field in dataclasses.fields(kinds.pop()):
            names.add(field.name)
            if dataclasses.is_dataclass(_inner_type(field.type)):
                kinds.append(_inner_type(field.type))
    return frozenset(names)


def _inner_type(declared: Any) -> Any:
    """The type behind `X | None` and `tuple[X, ...]`."""
    while get_args(declared) and not isinstance(declared, type):
        declared = next(each for each in get_args(declared) if each is not NoneType)
    return get_args(declared)[0] if get_origin(declared) is tuple else declared


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    inner = _inner_type(field.type)
    if dataclasses.is_dataclass(inner) and value is not None:
        return build(inner, value) if isinstance(value, Mapping) else tuple(build(inner, item) for item in value)
    match field.metadata.get("kafka_type"):
        case "timedelta_i32" | "timedelta_i64" if isinstance(value, int):
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64" if isinstance(value, int):
            return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
    return tuple(value) if isinstance(value, list) else value


def _empty(field: dataclasses.Field[Any]) -> Any:
    if get_origin(field.type) is tuple:
        return ()
    if NoneType in get_args(field.type):
        return None
    inner = _inner_type(field.type)
    if dataclasses.is_dataclass(inner):
        return build(inner, {})
    return {
        "string": "",
        "bytes": b"",
        "records": b"",
        "bool": False,
        "uuid": uuid.UUID(int=0),
        "timedelta_i32": datetime.timedelta(0),
        "timedelta_i64": datetime.timedelta(0),
        "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
        "float64": 0.0,
    }.get(field.metadata["kafka_type"], 0)
