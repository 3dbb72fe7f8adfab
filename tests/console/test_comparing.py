"""What distinguishes two letters: found wherever it is, also where it is not shown."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from penstock.console.comparing import MOST, differences
from penstock.console.views import Difference
from penstock.model import DeadLetter
from tests.console.letters_of_tests import letter


def with_value(value: bytes, headers: tuple[tuple[str, bytes | None], ...] = ()) -> DeadLetter:
    same = letter("orders", 1)
    return replace(same, record=replace(same.record, value=value, headers=headers))


def only_difference(left: DeadLetter, right: DeadLetter) -> Difference:
    (found,) = differences(left, right)
    return found


def test_texts_that_differ_far_behind_are_shown_from_there() -> None:
    found = only_difference(with_value(b"a" * 50_000 + b"left" + b"z" * 9_000), with_value(b"a" * 50_000 + b"right"))
    assert found.path == "value"
    assert found.left is not None
    assert found.left.startswith("… (from character 49,941) aaa")
    assert "aleftzzz" in found.left
    assert found.left.endswith("… (59,004 characters in all)")
    assert found.right is not None
    assert found.right.endswith("aright")


def test_bytes_that_differ_behind_what_a_list_would_show_are_not_taken_for_the_same() -> None:
    common = bytes(range(128, 256)) * 100
    found = only_difference(with_value(common + b"\x01\x02"), with_value(common + b"\x01\x03"))
    assert (found.left, found.right) == (
        "… (from byte 12,801) 02 … (12,802 bytes in all)",
        "… (from byte 12,801) 03 … (12,802 bytes in all)",
    )
    assert only_difference(with_value(b"\xff\x00"), with_value(b"text")).left == "ff 00"


def test_leaves_of_json_and_headers_are_compared_whole() -> None:
    long = "x" * 5_000
    found = only_difference(
        with_value(f'{{"a": "{long}1", "b": 1}}'.encode()), with_value(f'{{"a": "{long}2", "b": 1}}'.encode())
    )
    assert found.path == "value.a"
    twice = only_difference(with_value(b"", (("h", b"1"), ("h", b"2"))), with_value(b"", (("h", b"1"), ("h", b"3"))))
    assert (twice.path, twice.left, twice.right) == ("header.h'", "2", "3")
    assert only_difference(with_value(b"", (("h", None),)), with_value(b"", (("h", b""),))).left == "null"


@pytest.mark.parametrize("step", [b"x", b"[1],"])
def test_large_values_are_compared_in_no_time_and_no_more_is_told_than_people_read(step: bytes) -> None:
    left = step * (8_000_000 // len(step))
    began_s = time.monotonic()
    assert len(differences(with_value(left), with_value(left[:-1] + b"y"))) == 1
    assert time.monotonic() - began_s < 20, "comparing character by character would take minutes"
    one, other = (with_value(str([number + offset for number in range(9_000)]).encode()) for offset in (0, 1))
    assert len(differences(one, other)) == MOST
