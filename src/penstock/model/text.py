"""Text for people: durations, numbers and counts, and names with everything unprintable escaped."""

from __future__ import annotations

from typing import Final

LONGEST_SHOWN: Final = 200
LONGEST_ERROR: Final = 1_000
"""The length at which pipelines cut their own errors; the position in the program comes last in them."""
_STEPS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration_text(duration_s: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 5 h, 2 d 4 h: the two largest units that are not zero."""
    if duration_s < 10:
        return f"{max(0.0, duration_s):.1f}".removesuffix(".0") + " s"
    left = round(duration_s)
    parts: list[str] = []
    for unit, size in _STEPS:
        if left >= size or (parts and unit != "s"):
            count, left = divmod(left, size)
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def number_text(number: float) -> str:
    """1,200 or 0.5: the significant digits."""
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 100 else f"{number:,.3g}"


def count_text(count: int, thing: str) -> str:
    """1 record, 2,000 records."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """The text with every unprintable character escaped, so that none moves a cursor or starts a line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shown_name(name: str, longest: int = LONGEST_SHOWN) -> str:
    """A name fit for a log, a subject line or a terminal. Kafka allows any character in a group's name."""
    plain = printable(name)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
