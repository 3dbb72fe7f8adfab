"""What pages are made of, without a page: rows that hide nothing, drafts like a record, addresses, sentences."""

from __future__ import annotations

import pytest

from penstock.console.jobs import Job
from penstock.console.messages.showing import Showing
from penstock.console.messages.view_settings import row_of as message_row
from penstock.console.views import Person
from penstock.console.web.files import as_file
from penstock.console.web.pages.dead_letters.comparison import LONGEST_LINES, is_cut
from penstock.console.web.pages.dead_letters.redrive import told
from penstock.console.web.pages.message_drawer import draft_of, headers_in
from penstock.console.web.pages.messages import CELL_LENGTH, row_of
from penstock.console.web.parts import LONGEST, address
from penstock.console.web.tables import legible
from penstock.console.web.texts import sentence
from penstock.dead_letters import RedriveReport
from penstock.model import Record

TURNED = "\u202erotartsinimda"
"""It reads administrator."""


def test_a_name_that_would_read_as_another_is_seen_through_and_still_leads_to_its_own_page() -> None:
    row = {"id": TURNED, "name": TURNED, "name_href": "/groups/x", "lag": 5, "lag_text": "5"}
    shown = legible(row, ["name", "name_text", "lag", "lag_text"])
    assert shown == {**row, "name_text": "⟨U+202E⟩rotartsinimda"}
    plain = {"id": "a", "name": "a"}
    assert legible(plain, ["name"]) is plain


def test_one_like_a_record_has_the_same_bytes_in_it() -> None:
    text = draft_of(Record("t", 0, 1, b"k", '{"ü": 1}\n'.encode(), (("a", b"x"), ("b", b"1: 2"))))
    assert (text.key, text.value, text.encoding, text.note) == ("k", '{"ü": 1}\n', "text", "")
    assert text.headers == (("a", "x"), ("b", "1: 2"))
    binary = draft_of(
        Record("t", 0, 1, b"\xff", b"\x00\x01", (("a", b"\xff"), ("b", None), ("c:d", b""), ("e", b" x")))
    )
    assert (binary.key, binary.key_encoding, binary.value, binary.encoding) == ("/w==", "base64", "AAE=", "base64")
    assert (binary.headers, binary.note) == ((), "4 headers cannot be written here, and are left out.")
    assert draft_of(Record("t", 0, 1, None, None)).value is None
    assert headers_in("a: x\n\nb: 1: 2") == [("a", "x"), ("b", "1: 2")]


def test_what_a_cell_has_no_room_for_is_marked() -> None:
    long = message_row(Record("t", 0, 1, b"k", b"x" * 500), 501, Showing())
    assert row_of(long)["value"] == "x" * CELL_LENGTH + " …"
    assert row_of(long)["key"] == "k"
    cut = message_row(Record("t", 0, 1, None, b"\xff" * 500), 500, Showing())
    assert row_of(cut)["value"].endswith(" …")


def test_of_many_headers_it_is_known_how_many_there_are() -> None:
    record = Record("t", 0, 1, None, None, tuple((f"h{number}", b"") for number in range(150)))
    row = message_row(record, 500, Showing())
    assert (len(row.headers), row.header_count) == (100, 150)


def test_an_address_keeps_what_was_chosen_unless_it_gets_too_long() -> None:
    assert address("/topics", {"filter": "a b&c"}) == "/topics?filter=a+b%26c"
    assert address("/topics", {}) == "/topics"
    assert address("/topics", {"filter": "x" * LONGEST}) == "/topics"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing answers", "Nothing answers"),
        ("orders.dlq is gone", "orders.dlq is gone"),
        ("'x' is gone", "'x' is gone"),
        ("", ""),
        ("URL is wrong", "URL is wrong"),
    ],
)
def test_errors_begin_as_sentences_do_unless_they_begin_with_a_name(text: str, expected: str) -> None:
    assert sentence(text) == expected


def test_texts_are_known_to_be_compared_in_part() -> None:
    assert not is_cut("a\nb")
    assert is_cut("a\n" * (LONGEST_LINES + 1))
    assert is_cut("x" * 5_000)


def test_how_a_job_stands_is_told_with_how_long_it_will_take() -> None:
    job = Job("orders.dlq", Person("ann", "10.0.0.7"), 0, rate_per_s=2.0)
    assert told(job) == "Redrive by ann (10.0.0.7): 0 redriven"
    job.total, job.report = 100, RedriveReport(redriven=38, gone=2)
    assert told(job) == "Redrive by ann (10.0.0.7): 38 of 100 redriven, 2 settled by others, about 30 s left"
    discarding = Job("orders.dlq", Person("ann", "10.0.0.7"), 0, kind="discard")
    discarding.total, discarding.discarded = 7, 7
    discarding.end(1, None)
    assert told(discarding).startswith("Discarding by ann (10.0.0.7) has ended: 7 of 7 discarded, ")


def test_a_file_has_a_harmless_name_and_every_byte() -> None:
    answer = as_file(Record('a"\r\n/ö', 0, 7, b"k", b"\x00\xff"), "value<script>")
    assert answer.body == b"\x00\xff"
    assert answer.headers["content-disposition"] == 'attachment; filename="a_____-0-7.value"'
    assert as_file(Record("t", 0, 7, b"k", None), "key").body == b"k"
