"""How alerts are said: lengths of time and counts for people, and names that cannot break a line."""

from __future__ import annotations

from typing import Final

LONGEST_SHOWN: Final = 200
_STEPS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration_text(duration_s: float) -> str:
    """0.4 s, 12 s, 3 min 20 s, 5 h, 2 d 4 h: the two largest units that say something."""
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
    """1,200 or 0.5: as many digits as say something."""
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 100 else f"{number:,.3g}"


def count_text(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def shown_name(name: str) -> str:
    """A name as it can stand in a log, a subject line or a terminal, whatever is in it.

    Kafka lets groups be named with anything, so what moves a cursor or begins a line is written as its escape.
    """
    plain = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)
    return plain if len(plain) <= LONGEST_SHOWN else plain[: LONGEST_SHOWN - 1] + "…"
