"""Numbers, sizes, times and durations for people. Pure functions; None is always a dash."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from penstock.model.text import duration_text as model_duration_text

NOTHING: Final = "–"
_SIZES: Final = ("B", "KB", "MB", "GB", "TB", "PB")
_SHORT: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def path_to(noun: str, name: str, **query: str) -> str:
    """The address of the page of one thing: `path_to("topics", "orders")`. Any name gives a safe address."""
    asked = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return f"/{noun}/{quote(name, safe='')}" + (f"?{asked}" if asked else "")


def number_text(number: float | None) -> str:
    """1234567 -> 1,234,567; fractions below 100 get one decimal."""
    if number is None:
        return NOTHING
    return f"{number:,.1f}" if number != int(number) and abs(number) < 100 else f"{number:,.0f}"


def short_text(number: float | None) -> str:
    """1234567 -> 1.2M: where there is little room."""
    if number is None:
        return NOTHING
    for size, letter in _SHORT:
        if abs(number) >= size:
            return f"{number / size:.1f}".removesuffix(".0") + letter
    return number_text(number)


def rate_text(rate_per_s: float | None) -> str:
    return NOTHING if rate_per_s is None else f"{short_text(round(rate_per_s, 1))}/s"


def size_text(size_bytes: float | None) -> str:
    """1536 -> 1.5 KB, in steps of 1,024."""
    if size_bytes is None:
        return NOTHING
    size = float(size_bytes)
    for name in _SIZES[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {name}" if name == "B" or size >= 100 else f"{size:.1f} {name}"
        size /= 1024
    return f"{size:.1f} {_SIZES[-1]}"


def duration_text(duration_s: float | None) -> str:
    """3725 -> 1 h 2 min: the two largest units that are not zero."""
    if duration_s is None:
        return NOTHING
    if duration_s < 0:
        return f"-{duration_text(-duration_s)}"
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms" if duration_s else "0 s"
    if duration_s < 60:
        return f"{duration_s:.1f} s" if duration_s < 10 else f"{duration_s:.0f} s"
    return model_duration_text(duration_s)


def time_text(at_ms: int | None) -> str:
    """A time in UTC to the millisecond, as it is written in queries too: 2026-01-02 03:04:05.678."""
    if at_ms is None:
        return NOTHING
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


def ago_text(at_ms: int | None, now_ms: int | None = None) -> str:
    """How long ago that was: 5 s ago."""
    if at_ms is None:
        return NOTHING
    past_s = ((int(time.time() * 1000) if now_ms is None else now_ms) - at_ms) / 1000
    if past_s < 1:
        return "now"
    return f"{duration_text(past_s) if past_s >= 60 else f'{int(past_s)} s'} ago"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """1 topic, 3 topics; give the plural when it does not end in s."""
    return f"{number_text(count)} {one if count == 1 else many or one + 's'}"


def sentence(text: str) -> str:
    """An error as the beginning of a sentence; one that begins with a name stays as it is."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isascii() and first.isalpha() and first.islower() else text
