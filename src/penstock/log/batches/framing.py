"""Checking that the records of a batch match its header, before it is stored.

Every record must lie within the batch and be filled by its fields, the offsets must count from 0, and the last record
must end where the batch does. Otherwise a reader would stop there and never see what follows.

In most batches, many consecutive records have the same size and the same fields; only offset, time and contents differ.
Such a run is checked a column at a time: the bytes at the same position of every record, as one slice.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidRecordError

MOST_RECORDS: Final = 1_000_000
"""The limit per batch: checking more would delay all other clients."""

_LARGE_RECORD_BYTES: Final = 4096
_SHORTEST_RUN: Final = 16
_LONGEST_RUN: Final = 8192
_MOST_SKIPPED: Final = 512
_LOW: Final = bytes(2 * number & 0x7F for number in range(_LONGEST_RUN))
_LOW_GOES_ON: Final = bytes(low | 0x80 for low in _LOW)
_MIDDLE: Final = bytes(number >> 6 for number in range(_LONGEST_RUN))
_MIDDLE_GOES_ON: Final = bytes(middle | 0x80 for middle in _MIDDLE)
"""The bytes of the offsets 0 to 8191: the last byte of a number is below 0x80, the others are not."""
_LAST_BYTES: Final = bytes(range(0x80))
_THREE_BYTE_NUMBERS: Final = 1 << 20
_VARINT_BITS: Final = 32
_VARLONG_BITS: Final = 64


def check_records(section: bytes | memoryview, count: int) -> bool:
    """Raise InvalidRecordError unless the section is exactly `count` records with the offsets 0, 1, 2 and so on.

    Returns whether each has a key.
    """
    if len(section) < _LARGE_RECORD_BYTES * count:
        section = bytes(section)  # faster to index; a section with large records is not copied
    if count > MOST_RECORDS:
        raise InvalidRecordError(f"the batch claims {count} records; send at most {MOST_RECORDS} in one")
    try:
        end, all_have_keys = _check(section, count)
    except IndexError:
        raise InvalidRecordError("the batch ends within a record: it holds fewer than its header says") from None
    if end != len(section):
        raise InvalidRecordError(f"{len(section) - end} bytes follow the {count} records that the batch says it holds")
    return all_have_keys


def _check(section: bytes | memoryview, count: int) -> tuple[int, bool]:
    """Where the last record ends, and whether each has a key. Raises IndexError if the section ends before it."""
    number = at = 0
    all_have_keys = True
    not_before, skip = 1, _SHORTEST_RUN
    while number < count:
        start = at
        # The length, in full: nearly always one or two bytes.
        byte = section[at]
        at += 1
        if byte >= 0x80:
            byte = byte & 0x7F | section[at] << 7
            at += 1
            if byte >= 0x4000:
                byte, at = _number(section, start, _VARINT_BITS)
        end = at + (byte >> 1)
        if byte & 1:
            raise _wrong(number, "has a negative length")
        at += 1  # the attributes, which are unused
        if section[at] < 0x80:
            at += 1
        else:
            at = _number(section, at, _VARLONG_BITS)[1]
        byte = section[at]
        at += 1
        if byte >= 0x80:
            byte = byte & 0x7F | section[at] << 7
            at += 1
            if byte >= 0x4000:
                byte, at = _number(section, at - 2, _VARINT_BITS)
        if byte != number << 1:
            raise _wrong(number, f"has offset {(byte >> 1) ^ -(byte & 1)} within the batch")
        # The key, then the value: an odd number is a negative length, which means null.
        byte = section[at]
        at += 1
        if byte >= 0x80:
            byte, at = _number(section, at - 1, _VARINT_BITS)
        if byte & 1:
            all_have_keys = False  # the records of a run that follows have keys of the same size
        else:
            at += byte >> 1
        byte = section[at]
        at += 1
        if byte >= 0x80:
            byte = byte & 0x7F | section[at] << 7
            at += 1
            if byte >= 0x4000:
                byte, at = _number(section, at - 2, _VARINT_BITS)
        if not byte & 1:
            at += byte >> 1
        byte = section[at]
        at += 1
        if byte:
            at = _check_headers(section, at - 1, end, number)
        if at != end:
            raise _wrong(number, "is not filled by its fields, or is shorter than they are")
        number += 1
        if (
            number >= not_before
            and count - number >= _SHORTEST_RUN
            and section[end] == section[start]
            and isinstance(section, bytes)
        ):
            more = _run(section, start, end, number - 1, count)
            number += more
            at += more * (end - start)
            if more:
                not_before, skip = number + 1, _SHORTEST_RUN
            else:
                not_before, skip = number + skip, min(2 * skip, _MOST_SKIPPED)
    return at, all_have_keys


def _check_headers(section: bytes | memoryview, at: int, end: int, number: int) -> int:
    bits, at = _number(section, at, _VARINT_BITS)
    count = bits >> 1
    if bits & 1 or count > end - at:
        raise _wrong(number, "claims an impossible number of headers")
    for _ in range(count):
        bits, at = _number(section, at, _VARINT_BITS)
        if bits & 1:
            raise _wrong(number, "has a header without a name")
        at += bits >> 1
        bits, at = _number(section, at, _VARINT_BITS)
        if not bits & 1:
            at += bits >> 1
        if at > end:
            raise _wrong(number, "is shorter than its headers")
    return at


def _number(section: bytes | memoryview, at: int, bits: int) -> tuple[int, int]:
    """The zigzag-encoded number at a position, and its end."""
    found = shift = 0
    while True:
        byte = section[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            if found >> bits:
                break
            return found, at
        shift += 7
        if shift >= bits:
            break
    raise InvalidRecordError(f"a number in the batch has more than {bits} bits")


def _run(section: bytes, start: int, end: int, number: int, count: int) -> int:
    """How many records after the one just checked equal it in all but offset, time and contents."""
    size = end - start
    most = min(count - number, (len(section) - start) // size, _boundary(number) - number)
    if most < _SHORTEST_RUN:
        return 0
    fixed, time_at, offset_at, width = _fields(section, start, end)
    tried, checked = _SHORTEST_RUN, 0
    while checked < most:
        tried = min(tried, most - checked)
        low = start + checked * size
        high = low + tried * size
        for at in fixed:
            if section[low + at : high : size] != section[start + at : start + at + 1] * tried:
                return max(checked - 1, 0)
        for at in range(time_at, offset_at - 1):
            if section[low + at : high : size].translate(None, _LAST_BYTES) != section[low + at : high : size]:
                return max(checked - 1, 0)
        if not section[low + offset_at - 1 : high : size].isascii():
            return max(checked - 1, 0)
        first = (number + checked) % _LONGEST_RUN
        offsets = (_LOW,) if width == 1 else (_LOW_GOES_ON, _MIDDLE if width == 2 else _MIDDLE_GOES_ON)
        for at, column in enumerate(offsets, offset_at):
            if section[low + at : high : size] != column[first : first + tried]:
                return max(checked - 1, 0)
        checked += tried
        tried = min(8 * tried, _LONGEST_RUN)
    return checked - 1


def _boundary(number: int) -> int:
    """The first offset after `number` that needs more bytes, or at which the third byte changes."""
    if number < 64:
        return 64
    return (number // _LONGEST_RUN + 1) * _LONGEST_RUN if number < _THREE_BYTE_NUMBERS else number


def _fields(section: bytes, start: int, end: int) -> tuple[list[int], int, int, int]:
    """The bytes of a valid record that hold sizes, where its time and offset begin, and the offset's width."""
    fixed: list[int] = []

    def number(at: int) -> tuple[int, int]:
        bits, after = _number(section, at, _VARLONG_BITS)
        fixed.extend(range(at - start, after - start))
        return bits, after

    _, at = number(start)
    time_at = at + 1
    offset_at = _number(section, time_at, _VARLONG_BITS)[1]
    at = _number(section, offset_at, _VARINT_BITS)[1]
    width = at - offset_at
    if width == 3:
        fixed.append(at - 1 - start)
    for _ in range(2):
        bits, at = number(at)
        at += 0 if bits & 1 else bits >> 1
    headers, at = number(at)
    for _ in range(headers):  # twice their number: a name and a value each
        bits, at = number(at)
        at += 0 if bits & 1 else bits >> 1
    return fixed, time_at - start, offset_at - start, width


def _wrong(number: int, what: str) -> InvalidRecordError:
    return InvalidRecordError(f"record {number} of the batch {what}", [number])
