"""What the cases of a buffer share: records to put, and looking at all that is there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from penstock.abc import Buffer, Buffered
from penstock.model import NewRecord
from penstock.testing.conformance.suite import Opener, Suite

SETTLE_S: Final = 60.0
"""How long something in another thread may take."""
EVERYTHING_BYTES: Final = 1 << 40
LIMITED_RECORDS: Final = 10

_BYTES: Final = (None, b"", b"\x00", b"plain", b"\xff\xfe\x00\x80", "größe".encode(), bytes(range(256)))


class BufferSuite(Suite[Buffer]):
    """The base of all cases for buffers."""

    limited: ClassVar[Any] = None

    def open_limited(self) -> Buffer:
        """A buffer that holds at most LIMITED_RECORDS records."""
        if self.limited is None:
            self.skipTest("nobody said how a small one is opened: give conformance.buffer(..., limited=...)")
        opener: Opener[Buffer] = Opener(self.limited, self.opener.folder)
        buffer = opener()
        self.addCleanup(buffer.close)
        return buffer

    def random_records(self, count: int, first: int = 0) -> list[NewRecord]:
        return [random_record(self.rng, number) for number in range(first, first + count)]


def random_record(rng: random.Random, number: int) -> NewRecord:
    """Anything that a record may be, but for its size; no two are the same."""
    headers = tuple((rng.choice(("trace", "", "größe")), rng.choice(_BYTES)) for _ in range(rng.choice((0, 0, 1, 3))))
    return NewRecord(
        rng.choice(("orders", "clicks")),
        rng.choice((None, b"%d" % number, b"%d" % number * rng.randrange(1, 300))),
        rng.choice(_BYTES),
        headers,
        1_700_000_000_000 + number,
        rng.choice((None, 0, 7)),
    )


def numbered_record(number: int) -> NewRecord:
    return NewRecord("orders", b"record %d" % number, b"key", (), 1_700_000_000_000 + number)


def number_in(record: NewRecord) -> int:
    return int((record.value or b"").split()[1])


def everything(buffer: Buffer) -> list[Buffered]:
    """All that is not committed, a few at a time."""
    found: list[Buffered] = []
    after = -1
    while more := buffer.peek(after, 7, EVERYTHING_BYTES):  # ends: each time it must get further
        assert more[0].sequence > after, f"peek behind {after} gave record {more[0].sequence}"
        found += more
        after = more[-1].sequence
    check_ascending(found)
    return found


def check_ascending(found: Sequence[Buffered]) -> None:
    numbers = [each.sequence for each in found]
    assert numbers == sorted(set(numbers)), f"numbers must ascend, but these are {numbers}"


def records_of(found: Iterable[Buffered]) -> list[NewRecord]:
    return [each.record for each in found]
