"""Showing bytes: what they look like is found, and nothing that stands in a topic breaks or deceives who looks."""

from __future__ import annotations

import base64
import struct
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.console.messages.showing import ROW_CHARACTERS, WHOLE_CHARACTERS, Showing
from penstock.console.views import Decode
from penstock.errors import ConfigError

FORMS: tuple[Decode, ...] = typing.get_args(Decode)
BOMBS = {
    "arrays in arrays": b"[" * 3_000_000,
    "objects in objects": b'{"a":' * 500_000,
    "msgpack in msgpack": b"\x91" * 3_000_000,
    "digits": b"9" * 1_000_000,
    "a text without end": b'{"a":"' + b"x" * 10_000_000,
}


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "null", "null"),
        (b"", "empty", ""),
        (b'{"b": 1, "a": 1.10, "b": 1e2}', "json", '{"b":1,"a":1.10,"b":1e2}'),
        (b" [1, 2] ", "json", "[1,2]"),
        (b"42", "number", "42"),
        (b"-1.50", "number", "-1.50"),
        (b"true", "boolean", "true"),
        (b'"x"', "json", '"x"'),
        (b"hello", "text", "hello"),
        ("grüße 💥".encode(), "text", "grüße 💥"),
        (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
        (b"{not json", "text", "{not json"),
        (b'{"a": NaN}', "text", '{"a": NaN}'),
        (b'"\\ud800"', "text", '"\\ud800"'),
        (msgspec.msgpack.encode({"a": [1, b"x"]}), "msgpack", '{"a":[1,"b\'x\'"]}'),
        (b"\xff\xfeab", "hex", "ff fe 61 62  ..ab"),
        (b"\x00\x00\x00\x00\x11\x02\x03", "registry", "00 00 00 00 11 02 03  ......."),
    ],
)
def test_what_bytes_look_like_is_found(data: bytes | None, form: str, text: str) -> None:
    shown = Showing().show(data)
    assert (shown.form, shown.text, shown.is_cut) == (form, text, False)
    assert shown.size_bytes == len(data or b"")


def test_json_on_its_own_is_indented_and_stays_as_it_was_written() -> None:
    shown = Showing(characters=WHOLE_CHARACTERS, is_pretty=True).show(b'{"a":{"b":[1.10,12345678901234567890123]}}')
    assert shown.text == '{\n  "a": {\n    "b": [\n      1.10,\n      12345678901234567890123\n    ]\n  }\n}'


def test_hidden_marks_can_be_seen() -> None:
    shown = Showing().show("user\u202egnp.exe\u200b and \x07 and\ttab and a long text around them".encode())
    assert shown.text == "user⟨U+202E⟩gnp.exe⟨U+200B⟩ and ␇ and\ttab and a long text around them"


def test_a_schema_is_named_where_no_registry_is() -> None:
    note = Showing().show(b"\x00\x00\x00\x00\x11\x02\x03").note
    assert note is not None
    assert "schema 17" in note


def test_numbers_of_javas_serialisers_are_told_beside_the_hex() -> None:
    assert Showing().show(struct.pack(">q", 5)).note == "as a number 5"
    assert Showing("number").show(struct.pack(">d", 2.5)).text.endswith("(as a fraction 2.5)")


def test_a_form_that_does_not_fit_says_so_and_shows_hex() -> None:
    for decode in ("json", "msgpack", "avro", "number"):
        shown = Showing(decode).show(b"\xc1\xff\xff")
        assert shown.form == "hex"
        assert shown.note
    assert "\ufffd" in Showing("text").show(b"a\xffb").text
    assert Showing("base64").show(b"\xff\x00").text == base64.b64encode(b"\xff\x00").decode()


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a format"):
        Showing("xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_pretty", [False, True])
@pytest.mark.parametrize("decode", FORMS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_shown_and_bounded(bomb: str, decode: Decode, is_pretty: bool) -> None:
    shown = Showing(decode, is_pretty=is_pretty).show(BOMBS[bomb])
    assert shown.is_cut
    assert len(shown.text) <= 8 * ROW_CHARACTERS


@given(st.one_of(st.binary(max_size=200), st.text(max_size=80).map(lambda text: text.encode(errors="replace"))))
@settings(max_examples=300, deadline=None)
def test_anything_is_shown_in_every_form(data: bytes) -> None:
    for decode in FORMS:
        for is_pretty in (False, True):
            shown = Showing(decode, is_pretty=is_pretty).show(data)
            shown.text.encode()  # has no half characters
            assert not set(shown.text) & set("\x00\x07\x1b\x7f\x9b\u202e\u2066\u200f\ufeff")


@given(st.recursive(st.none() | st.booleans() | st.text() | st.binary() | st.integers(0, 2**63), st.lists))
@settings(max_examples=100, deadline=None)
def test_whatever_msgpack_carries_is_shown(value: object) -> None:
    assert Showing("msgpack").show(msgspec.msgpack.encode([value])).form == "msgpack"
