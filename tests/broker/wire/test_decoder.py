"""Requests are read as kio wrote them, and what no client may write is refused before it takes memory or time."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from penstock.broker.versions import FETCH, PRODUCE
from penstock.broker.wire.fetch import read_fetch
from penstock.broker.wire.primitives import MalformedRequestError
from penstock.broker.wire.produce import read_produce
from penstock.broker.wire.schema import decode_request
from tests.clients.fuzzing import EVERY_VERSION, Requests, Token, joined, lies_about

MEBIBYTE = 1024 * 1024
BY_SCHEMA = [(api_key, version) for api_key, version in EVERY_VERSION if api_key not in (PRODUCE, FETCH)]


def decode(api_key: int, version: int, body: bytes) -> object:
    """What the broker does with a body; the errors that a connection takes for a malformed request count as one."""
    try:
        if api_key == PRODUCE:
            return read_produce(memoryview(body), 0, version)
        if api_key == FETCH:
            return read_fetch(memoryview(body), 0, version)
    except (IndexError, struct.error, ValueError) as error:
        raise MalformedRequestError(str(error)) from error
    return decode_request(api_key, version, body)


@pytest.mark.parametrize(("api_key", "version"), BY_SCHEMA)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_it_reads_what_kio_wrote(api_key: int, version: int, data: st.DataObject) -> None:
    schema = load_request_schema(api_key, version)
    out = io.BytesIO()
    entity_writer(schema)(out, data.draw(st.from_type(schema)))
    body = out.getvalue()
    assert decode_request(api_key, version, body) == entity_reader(schema)(body, 0)[0]


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_counts_and_lengths_that_lie_take_no_memory(api_key: int, version: int) -> None:
    requests = Requests(1)
    tracemalloc.start()
    try:
        for _ in range(4):
            tokens = requests.body(api_key, version)
            decode(api_key, version, joined(tokens))
            for place, token in enumerate(tokens):
                for lie in lies_about(token) if token.size else ():
                    try:
                        decode(api_key, version, joined([*tokens[:place], Token(lie), *tokens[place + 1 :]]))
                    except MalformedRequestError:
                        continue
        assert tracemalloc.get_traced_memory()[1] < 16 * MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        pytest.param(3, 12, "ffffffff7f", id="Metadata v12, the frame that ended the process"),
        pytest.param(3, 1, "7fffffff", id="Metadata v1"),
        pytest.param(2, 6, "ffffffff" + "00" + "ffffffff07", id="ListOffsets v6"),
        pytest.param(15, 0, "7fffffff", id="DescribeGroups v0"),
    ],
)
def test_an_array_that_claims_more_entries_than_bytes_is_refused(api_key: int, version: int, body: str) -> None:
    with pytest.raises(MalformedRequestError, match="claims"):
        decode_request(api_key, version, bytes.fromhex(body))


@pytest.mark.parametrize(
    ("api_key", "version", "body", "what"),
    [
        pytest.param(2, 1, "ffffffffffffffff", "topics is null", id="an array"),
        pytest.param(12, 0, "ffff" + "00000000" + "0000", "group_id is null", id="a string"),
        pytest.param(14, 0, "000167" + "00000000" + "00016d" + "00000001" + "00016d" + "ffffffff", "null", id="bytes"),
        pytest.param(0, 9, "00" + "0001000003e8" + "0000", "an array is null", id="Produce's topics"),
        pytest.param(0, 9, "00" + "0001000003e8" + "02000100" + "00", "a topic has no name", id="Produce's name"),
        pytest.param(1, 12, "ffffffff" + 3 * "00000000" + "00" + 8 * "00" + "000101", "null", id="Fetch's topics"),
    ],
)
def test_null_is_refused_where_the_protocol_has_none(api_key: int, version: int, body: str, what: str) -> None:
    with pytest.raises(MalformedRequestError, match=what):
        decode(api_key, version, bytes.fromhex(body))


def test_null_is_taken_where_the_protocol_has_it() -> None:
    assert decode_request(3, 1, bytes.fromhex("ffffffff")).topics is None


def test_an_array_of_fixed_numbers_that_is_cut_short_is_refused() -> None:
    with pytest.raises(MalformedRequestError, match="8 bytes where 7 are left"):
        decode_request(9, 1, bytes.fromhex("000167" + "00000001" + "000174" + "00000002" + 7 * "00"))


def test_a_string_longer_than_kafka_allows_is_refused() -> None:
    with pytest.raises(MalformedRequestError, match="client_software_name has 32768 bytes"):
        decode_request(18, 3, b"\x81\x80\x02" + b"x" * 32768 + b"\x041.0\x00")


def test_more_entries_than_a_request_may_hold_are_refused_at_once() -> None:
    empty_topics = b"\x01g" + struct.pack(">i", 2_000_000) + b"\0\0\0\0\0\0" * 2_000_000
    started = time.monotonic()
    with pytest.raises(MalformedRequestError, match=r"max\.request\.entries"):
        decode_request(9, 1, b"\x00" + empty_topics)
    assert time.monotonic() - started < 1
    with pytest.raises(MalformedRequestError, match=r"max\.request\.entries"):
        decode_request(15, 0, struct.pack(">i", 11) + 11 * b"\x00\x01g", max_entries=10)


def test_a_retention_time_beyond_all_bounds_is_the_longest_there_is() -> None:
    body = b"\x00\x01g" + b"\xff\xff\xff\xff" + b"\x00\x00" + struct.pack(">q", 2**63 - 1) + b"\x00\x00\x00\x00"
    assert decode_request(8, 2, body).retention_time > timedelta(days=900_000_000)


def test_an_unknown_tagged_field_is_passed_over() -> None:
    name, version = b"\x05mine", b"\x041.0"
    plain = decode_request(18, 3, name + version + b"\x00")
    unknown_tag = b"\x01" + b"\xc8\x01" + b"\x03abc"
    assert decode_request(18, 3, name + version + unknown_tag) == plain
    assert plain.client_software_name == "mine"
    with pytest.raises(MalformedRequestError):
        decode_request(18, 3, name + version + b"\x01\xc8\x01\xff\xff\xff\xff\x07abc")


def test_bytes_behind_a_request_are_passed_over_as_apache_kafka_does() -> None:
    assert decode_request(18, 3, b"\x05mine\x041.0\x00" + b"more").client_software_name == "mine"
