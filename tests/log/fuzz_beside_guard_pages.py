"""Decode damaged batches that end, and others that begin, right where memory may not be read: `SEED COUNT`.

Run as a program of its own, as one read too far ends the process. Prints how many were refused and how many were read.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys

from penstock.errors import CorruptBatchError
from penstock.log.arrow import decode
from tests.log import batches
from tests.log.batches import Batch, Record

PAGE = mmap.PAGESIZE
ROOM = 16 * PAGE
PROT_NONE = 0


def between_guard_pages() -> memoryview:
    """Memory with a page before and a page behind it that no one may touch."""
    whole = mmap.mmap(-1, ROOM + 2 * PAGE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    libc = ctypes.CDLL(None, use_errno=True)
    for page in (begin, begin + PAGE + ROOM):
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return memoryview(whole)[PAGE : PAGE + ROOM]


def damaged(seeded: random.Random) -> bytes:
    records = []
    for offset in range(seeded.randrange(1, 8)):
        headers = tuple(
            ("n" * seeded.randrange(4), seeded.randbytes(seeded.randrange(20))) for _ in range(seeded.randrange(3))
        )
        key, value = (seeded.choice([None, seeded.randbytes(seeded.randrange(30))]) for _ in range(2))
        records.append(Record(offset, seeded.randrange(-300, 300), key, value, headers))
    section = bytearray(b"".join(batches.encode_record(record, 0, 0) for record in records))
    for _ in range(seeded.choice([0, 1, 1, 2, 5])):
        at = seeded.randrange(len(section))
        number = batches.varint(
            seeded.choice([-1, 0, 1, 20, 100, 2**31 - 1, -(2**31), 2**40, seeded.randrange(1 << 34)])
        )
        section[at : at + seeded.randrange(3)] = seeded.choice([number, seeded.randbytes(1), b"", b"\xff" * 10])
    return batches.frame(Batch(0, (), len(records) - 1), bytes(section), len(records))


def main() -> None:
    seeded = random.Random(int(sys.argv[1]))
    room = between_guard_pages()
    refused = read = 0
    for number in range(int(sys.argv[2])):
        batch = damaged(seeded)
        at = seeded.choice([0, ROOM - len(batch)])
        room[at : at + len(batch)] = batch
        outcomes = []
        for engine in ("numba", "numpy"):
            try:
                decoded = decode(room[at : at + len(batch)], partition=0, engine=engine, views=True)
                decoded.validate(full=True)
                outcomes.append(decoded.to_pylist())
                read += 1
            except CorruptBatchError:
                outcomes.append(None)
                refused += 1
            except BaseException:
                print(f"seed {sys.argv[1]}, batch {number}, by {engine}: {batch!r}", file=sys.stderr)
                raise
        if outcomes[0] != outcomes[1]:
            raise AssertionError(f"seed {sys.argv[1]}, batch {number}: {batch!r}: {outcomes[0]} != {outcomes[1]}")
    print(refused, read)


if __name__ == "__main__":
    main()
