"""Numbers and times as people read them."""

from __future__ import annotations

import pytest

from penstock.console.web import texts


@pytest.mark.parametrize(
    ("number", "expected"), [(None, "–"), (0, "0"), (1234567, "1,234,567"), (3.25, "3.2"), (12345.6, "12,346")]
)
def test_numbers(number: float | None, expected: str) -> None:
    assert texts.number_text(number) == expected


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (200 * 1024, "200 KB"), (5 * 1024**4, "5.0 TB")],
)
def test_sizes(size_bytes: int | None, expected: str) -> None:
    assert texts.size_text(size_bytes) == expected


@pytest.mark.parametrize(
    ("duration_s", "expected"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.25, "250 ms"),
        (5.04, "5.0 s"),
        (59.4, "59 s"),
        (3725, "1 h 2 min"),
        (3600, "1 h"),
        (90061, "1 d 1 h"),
        (-5, "-5.0 s"),
    ],
)
def test_durations(duration_s: float | None, expected: str) -> None:
    assert texts.duration_text(duration_s) == expected


def test_times_that_no_calendar_has_are_shown_as_they_are() -> None:
    assert texts.time_text(0) == "1970-01-01 00:00:00.000"
    assert texts.time_text(10**18) == str(10**18)
    assert texts.ago_text(0, 65_000) == "1 min 5 s ago"
    assert texts.ago_text(0, 2_900) == "2 s ago"


def test_every_name_makes_an_address_of_its_own() -> None:
    assert texts.path_to("letters", "sqlite:./a b?.db") == "/letters/sqlite%3A.%2Fa%20b%3F.db"
    assert texts.path_to("topics", '"><script>') == "/topics/%22%3E%3Cscript%3E"
    assert texts.path_to("topics", "a", tab="x&y") == "/topics/a?tab=x%26y"
