"""What the lines of `penstock produce --json` may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.commands.produce import BadInputError, InputRecord, parse_json, parse_key_and_value, read_records
from penstock.cli.record_formats import as_json, printable_bytes
from penstock.model import Record


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{oops", "not JSON"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ("", "not JSON"),
        ('{"key": "k"}', 'no "value"'),
        ('{"value": 1, "vlaue": 2}', "unknown field 'vlaue'"),
        ('{"value": 1, "value_base64": "AA=="}', 'both "value" and "value_base64"'),
        ('{"value_base64": "?"}', '"value_base64" is not base64'),
        ('{"value_base64": 5}', '"value_base64" is not base64'),
        ('{"value": 1, "timestamp": "now"}', '"timestamp" is "now", not a whole number from 1'),
        ('{"value": 1, "timestamp": 0}', "not a whole number from 1"),
        ('{"value": 1, "partition": -1}', "not a whole number from 0"),
        ('{"value": 1, "partition": true}', "not a whole number from 0"),
        ('{"value": 1, "headers": "a=b"}', '"headers" is neither an object nor a list'),
        ('{"value": 1, "headers": [["a"]]}', "a header is not [name, value]"),
        ('{"value": 1, "headers": {"a": 1}}', "the header 'a' is neither text, null"),
    ],
)
def test_a_line_that_cannot_be_understood_says_why_and_which(line: str, complaint: str) -> None:
    good = b'{"value": "good"}\n'
    records = read_records([good, line.encode() + b"\n", good], parse_json)
    assert next(records).value == b"good"
    with pytest.raises(BadInputError) as refusal:
        next(records)
    assert str(refusal.value).startswith("line 2: ")
    assert complaint in str(refusal.value)


@given(st.binary())
def test_no_line_fails_in_another_way(line: bytes) -> None:
    try:
        assert isinstance(parse_json(1, len(line), line), InputRecord)
    except BadInputError as error:
        assert error.number == 1  # noqa: PT017


HEADERS = st.lists(st.tuples(st.text(), st.none() | st.binary())).map(tuple)


@given(key=st.none() | st.binary(), value=st.none() | st.binary(), headers=HEADERS)
def test_every_record_survives_being_written_and_read_as_json(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    written = as_json(Record("orders", 3, 42, key, value, headers, 1_700_000_000_000))
    assert written.count(b"\n") == 1
    (read,) = read_records([written], parse_json)
    assert read == InputRecord(1, len(written), value, key, headers, 1_700_000_000_000, 3)


@given(key=st.binary().filter(lambda key: b":" not in key), value=st.binary())
def test_the_first_separator_ends_the_key(key: bytes, value: bytes) -> None:
    parse = parse_key_and_value(b":")
    assert parse(1, 0, key + b":" + value) == InputRecord(1, 0, value, key)


@given(st.binary())
def test_printed_text_is_one_line_that_moves_no_cursor(content: bytes) -> None:
    shown = printable_bytes(content)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
