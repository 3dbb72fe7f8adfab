"""AMQP 1.0 messages and frames of RabbitMQ streams, without a server."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BrokerUnavailableError
from penstock.model import Headers, NewRecord
from penstock.streams.adapting.amqp_values import NotAmqpError, decode
from penstock.streams.rabbitmq.messages import message_of, record_of
from penstock.streams.rabbitmq.protocol import read_chunk
from penstock.streams.rabbitmq.stream import max_age_s
from tests import real_parts

NAMES = st.text(max_size=300)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=300)), max_size=4).map(tuple)


@given(st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=300), HEADERS, st.integers(1, 1 << 60))
def test_records_come_back_from_their_messages(
    value: bytes | None, key: bytes | None, headers: Headers, number: int
) -> None:
    message = message_of(NewRecord("t", value, key, headers), b"0123456789abcdef", number)
    record = record_of("t", 3, 7, 1_000, message)
    assert (record.value, record.key, record.headers) == (value, key, headers)
    assert (record.topic, record.partition, record.offset, record.timestamp_ms) == ("t", 3, 7, 1_000)


@given(st.none() | st.binary(max_size=300), HEADERS.filter(lambda headers: len(dict(headers)) == len(headers)))
def test_another_library_reads_our_messages(key: bytes | None, headers: Headers) -> None:
    read = proton_message()
    read.decode(message_of(NewRecord("t", b"value", key, headers), b"0123456789abcdef", 5))
    assert bytes(read.body) == b"value"
    assert read.id == "penstock-0123456789abcdef-5"
    found = {name: _as_bytes(content) for name, content in (read.properties or {}).items()}
    assert found.pop("penstock-key", None) == key
    if "penstock-headers" not in found:
        assert found == dict(headers)


WORDS = st.text("abcü€😀 ", max_size=12)
SIMPLE = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | WORDS | st.floats(width=64)
VALUES = (
    SIMPLE | st.lists(SIMPLE, max_size=4) | st.dictionaries(WORDS, SIMPLE | st.lists(WORDS, max_size=2), max_size=4)
)


@given(VALUES, st.dictionaries(WORDS, SIMPLE, max_size=5))
def test_we_read_the_messages_of_another_library(body: Any, properties: dict[str, Any]) -> None:
    message = bytes(proton_message(body, properties=properties, subject="news").encode())
    record = record_of("t", 0, 0, 0, message)
    expected = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    assert record.value == expected
    assert record.key is None
    assert dict(record.headers)["amqp-subject"] == b"news"


NOT_HEADERS = [b"\xc1\x14\x02\xa1\x10penstock-headers%b" % content for content in (b"\x40", b"\x41", b"\x42")]
SHORT = [b"\x40", b"\x45", b"\xa0\x01x", b"\xa1\x01x", b"\x54\x05", b"\xc1\x01\x00", b"\xc0\x03\x01\x54\x05"]
CONTENTS = [*SHORT, *NOT_HEADERS]
SECTIONS = st.tuples(st.integers(0x70, 0x79), st.sampled_from(CONTENTS)).map(lambda pair: b"\x00\x53%c%b" % pair)


@given(st.binary(max_size=200) | st.lists(SECTIONS, max_size=4).map(b"".join))
def test_whatever_is_in_a_stream_is_a_record(message: bytes) -> None:
    record = record_of("t", 0, 0, 0, message)
    assert record.value is None or len(record.value) <= 2_000


@given(st.binary(min_size=1, max_size=200))
def test_damaged_values_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    try:
        _, end = decode(data, 0)
    except NotAmqpError:
        return
    assert 0 < end <= len(data)


def test_a_deeply_nested_value_is_refused() -> None:
    with pytest.raises(NotAmqpError, match="nested deeper"):
        decode(b"\x00" * 5_000, 0)


def chunk_of(entries: list[bytes], count: int, kind: int = 0) -> bytes:
    data = b"".join(entries)
    head = struct.pack(">BbHIqQQIIII", 0x50, kind, len(entries), count, 1_000, 1, 40, zlib.crc32(data), len(data), 0, 0)
    return head + data


def plain(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message


@pytest.mark.parametrize("codec", [None, cramjam.gzip, cramjam.snappy, cramjam.lz4, cramjam.zstd])
def test_messages_that_were_compressed_together_come_apart(codec: Any) -> None:
    kind = [None, cramjam.gzip, cramjam.snappy, cramjam.lz4, cramjam.zstd].index(codec)
    together = b"".join(plain(b"%d" % number) for number in range(3))
    packed = together if codec is None else bytes(codec.compress(together))
    batch = struct.pack(">BHII", 0x80 | kind << 4, 3, len(together), len(packed)) + packed
    chunk = read_chunk(chunk_of([plain(b"before"), batch, plain(b"after")], 5), 0)
    assert chunk is not None
    assert (chunk.first, chunk.end, chunk.time_ms) == (40, 45, 1_000)
    assert chunk.messages() == [b"before", b"0", b"1", b"2", b"after"]


def test_notes_of_rabbitmq_are_no_messages() -> None:
    assert read_chunk(chunk_of([plain(b"note")], 1, kind=1), 0) is None


def test_a_damaged_chunk_is_refused() -> None:
    whole = chunk_of([plain(b"one"), plain(b"two")], 2)
    for damaged in (whole[:-1], whole[:20], whole[:-1] + b"!", b"\x10" + whole[1:]):
        with pytest.raises(BrokerUnavailableError):
            read_chunk(damaged, 0)
    short = read_chunk(chunk_of([plain(b"one"), b""], 2), 0)
    assert short is not None
    with pytest.raises(BrokerUnavailableError, match="is damaged"):
        short.messages()


def proton_message(*arguments: Any, **named: Any) -> Any:
    """A message of Qpid Proton, which has its own encoding of AMQP 1.0."""
    real_parts.proton()
    from proton import Message

    return Message(*arguments, **named)


def _as_bytes(content: Any) -> bytes | None:
    if content is None:
        return None
    return content.encode() if isinstance(content, str) else bytes(content)


@pytest.mark.parametrize(
    ("arguments", "policy", "expected"),
    [
        ({}, {}, None),
        ({"x-max-age": "90s"}, {}, 90.0),
        ({"x-max-age": "2D"}, {"max-age": "36h"}, 36 * 3600.0),
        ({}, {"max-age": "1Y"}, 365 * 86_400.0),
        ({"x-max-age": "soon"}, None, None),
    ],
)
def test_the_age_until_which_a_stream_keeps_records(
    arguments: dict[str, str], policy: dict[str, str] | None, expected: float | None
) -> None:
    assert max_age_s({"arguments": arguments, "effective_policy_definition": policy}) == expected
