"""What a person may write for a position."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Position
from penstock.model import PositionKind

NOW: Final = datetime.datetime(2026, 11, 15, 8, 0, tzinfo=datetime.UTC)
NOW_MS: Final = 1_794_729_600_000


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Five hours behind UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position.EARLIEST),
        (" Latest ", Position.LATEST),
        ("0", Position.at_pointer(0)),
        ("007", Position.at_pointer(7)),
        ("999999999999", Position.at_pointer(999_999_999_999)),
        ("offset:1794729600000", Position.at_pointer(1_794_729_600_000)),
        ("1794729600000", Position.at_time(NOW_MS)),
        ("@5", Position.at_time(5)),
        ("-1h", Position.at_time(NOW_MS - 3_600_000)),
        ("-1.5s", Position.at_time(NOW_MS - 1_500)),
        ("-250ms", Position.at_time(NOW_MS - 250)),
        ("-2w", Position.at_time(NOW_MS - 14 * 86_400_000)),
        ("2026-11-15T08:00Z", Position.at_time(NOW_MS)),
        ("2026-11-15T09:00:00.250+01:00", Position.at_time(NOW_MS + 250)),
    ],
)
def test_a_position_can_be_written(text: str, position: Position) -> None:
    assert Position.parse(text, NOW) == position


@pytest.mark.usefixtures("in_new_york")
@pytest.mark.parametrize("text", ["2026-11-15T03:00", "2026-11-15 03:00:00"])
def test_a_time_without_a_zone_is_local(text: str) -> None:
    assert Position.parse(text, NOW) == Position.at_time(NOW_MS)


@pytest.mark.usefixtures("in_new_york")
def test_a_day_begins_at_its_local_midnight() -> None:
    assert Position.parse("2026-11-15", NOW) == Position.at_time(NOW_MS - 3 * 3_600_000)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-5", "1h", "+1h", "-1y", "1.5", "0x10", "2026-13-01", "-999999999w", "offset:", "@", "٣"]
)
def test_anything_else_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(penstock.ConfigError, match="is not a position: use earliest, latest, an offset"):
        Position.parse(text, NOW)


@given(st.text())
def test_no_text_makes_parsing_fail_in_another_way(text: str) -> None:
    try:
        assert Position.parse(text, NOW).kind in PositionKind
    except penstock.ConfigError as error:
        assert "is not a position" in str(error)  # noqa: PT017


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(penstock.ConfigError, match="has no time zone"):
        Position.at_time(datetime.datetime(2026, 11, 15))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (Position.EARLIEST, "earliest"),
        (Position.at_pointer("42"), "offset 42"),
        (Position.at_time(NOW), "2026-11-15T08:00:00.000+00:00"),
    ],
)
def test_a_position_says_what_it_is(position: Position, text: str) -> None:
    assert str(position) == text
