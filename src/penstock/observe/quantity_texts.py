"""Large quantities as people read them: thousands are thousands here, as they are on disks and networks."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_TIMES: Final = (("years", 365 * 86_400.0), ("days", 86_400.0), ("h", 3600.0), ("min", 60.0))


def bytes_text(size_bytes: float) -> str:
    """512 B, 5.1 MB, 3.02 TB: three digits and a unit of a thousand."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:,.0f} {unit}"


def time_text(duration_s: float) -> str:
    """0.27 s, 12 min, 33.6 h, 7 days."""
    for unit, length_s in _TIMES:
        if duration_s >= 2 * length_s:
            return f"{_short(duration_s / length_s)} {unit}"
    return f"{_short(duration_s)} s"


def per_s_text(rate_per_s: float) -> str:
    return f"{_short(rate_per_s)}/s"


def count_text(count: float) -> str:
    return _short(count)


def _short(number: float) -> str:
    """1,234,567 or 12.3 or 0.27."""
    if number >= 1000 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"
