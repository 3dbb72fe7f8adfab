"""The reader that passes over unknown tagged fields gives what the quick one gives, for every request we answer."""

from __future__ import annotations

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from penstock.broker.versions import FETCH, PRODUCE, SUPPORTED
from penstock.broker.wire.decoder import decoder
from penstock.broker.wire.schema import decode_request

EVERY_REQUEST = [
    (api_key, version)
    for api_key, (low, high) in sorted(SUPPORTED.items())
    if api_key not in (PRODUCE, FETCH)
    for version in range(low, high + 1)
]


@pytest.mark.parametrize(("api_key", "version"), EVERY_REQUEST)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_it_reads_what_the_quick_reader_reads(api_key: int, version: int, data: st.DataObject) -> None:
    schema = load_request_schema(api_key, version)
    entity = data.draw(st.from_type(schema))
    out = io.BytesIO()
    entity_writer(schema)(out, entity)
    written = out.getvalue()
    quick, used = entity_reader(schema)(written, 0)
    assert decoder(schema)(written, 0) == (quick, used)


def test_an_unknown_tagged_field_is_passed_over() -> None:
    name, version = b"\x05mine", b"\x041.0"
    plain = decode_request(18, 3, name + version + b"\x00")
    unknown_tag = b"\x01" + b"\xc8\x01" + b"\x03abc"
    assert decode_request(18, 3, name + version + unknown_tag) == plain
    assert plain.client_software_name == "mine"
