"""Messages of AMQP 1.0: records come back whole, and no bytes break the reader."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import NewRecord
from penstock.queues.amqp1.messages import decoded_message, delayed_copy, encoded_message, sections
from penstock.streams.adapting.amqp_values import Described, decode

HEADER, ANNOTATIONS = 0x70, 0x72
SOME = st.binary(max_size=300)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "penstock-key", "penstock-again-0-a", "x" * 300]) | st.text(), st.none() | SOME
    )
)


@given(st.none() | SOME, st.none() | SOME, HEADERS, st.none() | st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_a_record_comes_back_as_it_was(
    value: bytes | None, key: bytes | None, headers: list[Any], time_ms: int | None, by_key: bool
) -> None:
    record = NewRecord("queue", value, key, tuple(headers), time_ms)
    found, earlier = decoded_message("queue", encoded_message(record, "1", by_key))
    assert (found.key, found.value, found.headers, found.timestamp_ms) == (key, value, tuple(headers), time_ms)
    assert earlier == 0


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"\x40", None),
        (b"\x41", True),
        (b"\x56\x00", False),
        (b"\x50\x80", 128),
        (b"\x51\x80", -128),
        (b"\x60\x80\x00", 32768),
        (b"\x61\x80\x00", -32768),
        (b"\x70\xff\xff\xff\xff", 2**32 - 1),
        (b"\x52\x07", 7),
        (b"\x43", 0),
        (b"\x54\xff", -1),
        (b"\x71\xff\xff\xff\xfe", -2),
        (b"\x80" + b"\xff" * 8, 2**64 - 1),
        (b"\x55\xfd", -3),
        (b"\x81" + b"\xff" * 8, -1),
        (b"\x83" + (5).to_bytes(8), 5),
        (b"\x72\x3f\xc0\x00\x00", 1.5),
        (b"\x82\x3f\xf8" + bytes(6), 1.5),
        (b"\x73\x00\x01\xf6\x00", "\U0001f600"),
        (b"\x74abcd", b"abcd"),
        (b"\x98" + bytes(16), uuid.UUID(int=0)),
        (b"\xa0\x02ab", b"ab"),
        (b"\xb0\x00\x00\x00\x02ab", b"ab"),
        (b"\xb1\x00\x00\x00\x02\xc3\xbc", "ü"),
        (b"\xa3\x01s", "s"),
        (b"\x45", []),
        (b"\xc0\x04\x02\x52\x01\x40", [1, None]),
        (b"\xd0\x00\x00\x00\x06\x00\x00\x00\x01\x52\x01", [1]),
        (b"\xc1\x06\x02\xa1\x01k\x52\x01", {"k": 1}),
        (b"\xe0\x06\x02\xa1\x01a\x01b", ["a", "b"]),
        (b"\xf0\x00\x00\x00\x07\x00\x00\x00\x02\x52\x01\x02", [1, 2]),
        (b"\x00\xa3\x01d\x52\x04", Described("d", 4)),
    ],
)
def test_every_type_of_amqp_is_read(encoded: bytes, value: Any) -> None:
    assert decode(b"before" + encoded + b"after", 6) == (value, 6 + len(encoded))


def test_several_data_sections_are_one_value() -> None:
    assert decoded_message("queue", b"\x00Su\xa0\x02ab\x00Su\xa0\x02cd").record.value == b"abcd"


def test_other_bodies_are_text_or_json() -> None:
    bodies = {b"\xa1\x01x": b"x", b"\x52\x05": b"5", b"\xc1\x06\x02\xa0\x01k\x52\x01": b'{"k": 1}', b"\x40": None}
    for body, value in bodies.items():
        assert decoded_message("queue", b"\x00Sw" + body).record.value == value
    assert decoded_message("queue", b"\x00Sv\xc0\x03\x01\x52\x01").record.value == b"[1]"


def test_a_delayed_copy_changes_the_header_and_the_annotations_alone() -> None:
    body = encoded_message(NewRecord("queue", b"value", b"key", (("a", b"1"),), 5), "1", group_by_key=True)
    bare = body[next(section.start for section in sections(body) if section.code > ANNOTATIONS) :]
    header = b"\x00Sp\xc0\x08\x05\x42\x50\x07\x40\x41\x52\x03"
    annotations = b"\x00Sr\xc1\x08\x02\xa3\x03own\x52\x09"
    first = delayed_copy(header + annotations + bare, 3, 1.5, now_s=100.0)
    assert first is not None
    second = delayed_copy(first, 4, 2.0, now_s=200.0)
    assert second is not None
    found = {section.code: section.content for section in sections(second)}
    assert found[HEADER] == [True, 7, None]
    assert found[ANNOTATIONS] == {
        "x-opt-penstock-attempts": 4,
        "x-opt-delivery-delay": 2000,
        "x-opt-delivery-time": 202_000,
        "own": 9,
    }
    assert second.endswith(bare)
    before, after = decoded_message("queue", body), decoded_message("queue", second)
    assert (after.record, after.earlier_deliveries) == (before.record, 4)


def test_no_bytes_break_the_reader() -> None:
    rng = random.Random(7)
    whole = encoded_message(NewRecord("queue", b"value", b"key", (("a", b"1"), ("a", None)), 5), "1", True)
    whole += b"\x00Sw\xc1\x06\x02\xa1\x01k\x52\x01\x00Sv\xe0\x06\x02\xa1\x01a\x01b"
    broken = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        message = bytes(data[: rng.randint(1, len(data))])
        for read in (lambda message: decoded_message("queue", message), lambda message: delayed_copy(message, 1, 1, 1)):
            try:
                read(message)
            except ValueError:
                broken += 1
    assert broken > 3000
