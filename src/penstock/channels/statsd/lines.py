"""Lines of the StatsD protocol: `NAME:VALUE|KIND|@RATE|#TAG,TAG`, with several values between colons if it must be.

DogStatsD's extensions for tags, packed values and times (`|T1700000000`) are read. Its fields about containers are
passed over, and its events and service checks are not metrics.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "timer", "histogram", "distribution", "set", "meter"]
KINDS: Final[dict[bytes, Kind]] = {
    b"c": "counter",
    b"g": "gauge",
    b"ms": "timer",
    b"h": "histogram",
    b"d": "distribution",
    b"s": "set",
    b"m": "meter",
}
_LETTERS: Final = {kind: letters.decode() for letters, kind in KINDS.items()}
LONGEST_LINE_BYTES: Final = 1 << 16
_LINE: Final = re.compile(
    rb"([^:|\x00-\x1f\x7f]{1,1024}):([^|\x00-\x1f\x7f]+)\|([a-z]{1,2})((?:\|[^|\x00-\x1f\x7f]*)*)"
)
_NUMBER: Final = re.compile(rb"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?")
_EXACT_DIGITS: Final = 15
"""Integers of up to this many digits stay integers; longer ones become floats, as in other implementations."""
_LARGEST_NUMBER: Final = 1e100
"""So that squares, and sums of many, are still numbers."""
_LOWEST_RATE: Final = 1e-9
_TIME: Final = re.compile(rb"\d{1,11}")
_FORBIDDEN: Final = re.compile(r"[:|\x00-\x1f\x7f]")


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One value of a metric: the JSON in the value of a record."""

    name: str
    kind: Kind
    value: int | float | str
    """Text for a set, else a number."""
    delta: bool = False
    """For a gauge: the value is added to the current one."""
    rate: float = 1.0
    """The share of events that were sampled: a counter of 1 at a rate of 0.1 stands for 10."""
    tags: list[str] = []


class BadLineError(ValueError):
    """The line is not a metric."""


_decoder: Final = msgspec.json.Decoder(Metric)


def parse_line(line: bytes) -> tuple[list[Metric], int | None]:
    """The values of a line, and its time in milliseconds, if it has one. BadLineError if it is not a metric."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadLineError("it is not NAME:VALUE|KIND")
    name, values, letters, rest = match.groups()
    kind = KINDS.get(letters)
    if kind is None:
        raise BadLineError(f"its kind {letters.decode()!r} is unknown")
    try:
        rate, tags, time_ms = _extensions(rest) if rest else (1.0, [], None)
        shown = name.decode()
        if kind == "set":
            return [Metric(shown, kind, values.decode(), False, rate, tags)], time_ms
    except UnicodeDecodeError as error:
        raise BadLineError("it is not UTF-8") from error
    return [
        Metric(shown, kind, _number(each), kind == "gauge" and each[0] in b"+-", rate, tags)
        for each in values.split(b":")
    ], time_ms


def format_line(metric: Metric) -> bytes:
    """A metric as a line. BadLineError if it cannot be written as one."""
    if not metric.name or _FORBIDDEN.search(metric.name):
        raise BadLineError(f"the name {metric.name!r} is empty, or has a colon, a bar or a control character")
    if isinstance(metric.value, str) != (metric.kind == "set"):
        raise BadLineError(f"the value {metric.value!r} of a {metric.kind} is not {_value_of(metric.kind)}")
    if isinstance(metric.value, str):
        if not metric.value or re.search(r"[|\x00-\x1f\x7f]", metric.value):
            raise BadLineError(f"the value {metric.value!r} is empty, or has a bar or a control character")
        value = metric.value
    else:
        value = repr(metric.value)
        if metric.kind == "gauge" and metric.delta:
            value = value if value.startswith("-") else f"+{value}"
        elif metric.kind == "gauge" and value.startswith("-"):
            raise BadLineError(f"the gauge {metric.name} cannot be set to {value}: in StatsD, a sign means a change")
    if not 0 < metric.rate <= 1:
        raise BadLineError(f"the rate {metric.rate} is not above 0, up to 1")
    line = f"{metric.name}:{value}|{_LETTERS[metric.kind]}"
    if metric.rate != 1:
        line += f"|@{metric.rate!r}"
    if metric.tags:
        if any(not tag or re.search(r"[,|\x00-\x1f\x7f]", tag) for tag in metric.tags):
            raise BadLineError(f"the tags {metric.tags} are empty, or have a comma, a bar or a control character")
        line += f"|#{','.join(metric.tags)}"
    return line.encode()


def metric_of(value: bytes) -> Metric:
    """The metric in the JSON of a record. BadLineError if it has none."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(str(error)) from error


def _extensions(rest: bytes) -> tuple[float, list[str], int | None]:
    rate, time_ms = 1.0, None
    tags: list[str] = []
    for field in rest[1:].split(b"|"):
        mark, content = field[:1], field[1:]
        if mark == b"@":
            rate = _number(content)
            if not _LOWEST_RATE <= rate <= 1:
                raise BadLineError("its rate is not above 0, up to 1")
        elif mark == b"#":
            tags = [tag.decode() for tag in content.split(b",") if tag]
        elif mark == b"T":
            if _TIME.fullmatch(content) is None:
                raise BadLineError("its time is not a number of seconds")
            time_ms = int(content) * 1000
    return rate, tags, time_ms


def _number(text: bytes) -> int | float:
    if text.isdigit() and len(text) <= _EXACT_DIGITS:
        return int(text)
    if _NUMBER.fullmatch(text) is None:
        raise BadLineError("its value is not a number")
    if text[0] in b"+-" and text[1:].isdigit() and len(text) <= _EXACT_DIGITS:
        return int(text)
    number = float(text)
    if abs(number) > _LARGEST_NUMBER:
        raise BadLineError("its value is too large")
    return number


def _value_of(kind: Kind) -> str:
    return "text" if kind == "set" else "a number"
