"""Durations, sizes and rates as written on a command line, each with its unit.

A bare number is refused, as its unit would be ambiguous; so is an unknown unit.
"""

from __future__ import annotations

import math
import re
from typing import Final

import typer

_NUMBER: Final = r"(?:\d{1,3}(?:[,_]\d{3})+|\d{1,18})(?:\.\d{1,9})?"
_PART: Final = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>[a-zA-Z]+)\s*", re.ASCII)
_RATE: Final = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<scale>[kKMG]?)\s*/\s*(?P<per>[a-z]+)\s*", re.ASCII)

TIMES_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SIZES: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
_SIZE_BY_WRITING: Final = {name.lower(): size for name, size in SIZES.items()}
_PER_S: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86_400.0),
}
_SCALES: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
LONGEST_S: Final = 100 * 366 * 86_400.0


def seconds(text: str, option: str) -> float:
    """30s, 5m, 1h30m, 7d; 0 needs no unit."""
    if text.strip() == "0":
        return 0.0
    total_s, place = 0.0, 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None or part["unit"] not in TIMES_S:
            raise _wrong(text, "duration", "500ms, 30s, 5m, 1h30m or 7d", option)
        total_s += _number(part["number"]) * TIMES_S[part["unit"]]
        place = part.end()
    if place == 0:
        raise _wrong(text, "duration", "500ms, 30s, 5m, 1h30m or 7d", option)
    if total_s > LONGEST_S:
        raise typer.BadParameter(f"{text!r} is longer than a hundred years", param_hint=option)
    return total_s


def size_bytes(text: str, option: str) -> int:
    """100B, 1KB (1000), 1KiB (1024), 1.5GB, 4TB."""
    part = _PART.fullmatch(text)
    size = _SIZE_BY_WRITING.get(part["unit"].lower()) if part is not None else None
    if part is None or size is None:
        raise _wrong(text, "size", "100B, 1KB (1000 bytes), 1KiB (1024), 1.5GB or 4TB", option)
    found = _number(part["number"]) * size
    if found < 1 or found > 10**21:
        raise typer.BadParameter(f"{text!r} is too large a size", param_hint=option)
    return math.ceil(found)


def rate_per_s(text: str, option: str) -> float:
    """5000/s, 5k/s, 300000/min, 10M/day."""
    part = _RATE.fullmatch(text)
    if part is None or part["per"] not in _PER_S:
        raise _wrong(text, "rate", "5000/s, 5k/s, 300000/min or 10M/day", option)
    found = _number(part["number"]) * _SCALES[part["scale"]] / _PER_S[part["per"]]
    if not 0 < found <= 1e12:
        raise typer.BadParameter(f"{text!r} is not a rate that can be planned for", param_hint=option)
    return found


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _wrong(text: str, what: str, right: str, option: str) -> typer.BadParameter:
    return typer.BadParameter(f"{text!r} is not a {what} with a unit, such as {right}", param_hint=option)
