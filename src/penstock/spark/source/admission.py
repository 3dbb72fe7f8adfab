"""How much of what is there a batch takes: never more than its limit, and a fair part of each partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.spark.source.positions import Pointers

Sized = Callable[[int, int, int, int], tuple[int, int]]
"""`(partition, begin, end, size_bytes)`: where so many bytes from `begin` on end, at `end` at the latest, and how many
they are. Where there is a record, it is behind `begin`, however large the record is: a batch always goes on."""


def fair_shares(available: Mapping[int, int], limit: int, turn: int = 0) -> dict[int, int]:
    """How much of each partition a batch takes: together no more than `limit`, and as much where there is enough.

    A partition that has less than its part leaves the rest to the others. What cannot be divided goes to those whose
    `turn` it is, a number that the caller counts up.
    """
    shares = dict.fromkeys(available, 0)
    waiting = {partition: amount for partition, amount in available.items() if amount > 0}
    left = limit
    while waiting and left > 0:
        part = max(1, left // len(waiting))
        for partition in _from_turn(sorted(waiting), turn):
            taken = min(part, waiting[partition], left)
            shares[partition] += taken
            left -= taken
            waiting[partition] -= taken
            if not waiting[partition]:
                del waiting[partition]
            if not left:
                break
    return shares


def within_records(begin: Pointers, ends: Pointers, limit: int, turn: int = 0) -> Pointers:
    """Ends of a batch of at most `limit` pointers, which are at most as many records."""
    shares = fair_shares({partition: ends[partition] - begin[partition] for partition in begin}, limit, turn)
    return {partition: begin[partition] + shares[partition] for partition in begin}


def within_bytes(begin: Pointers, ends: Pointers, limit: int, sized: Sized, turn: int = 0) -> Pointers:
    """Ends of a batch of about `limit` bytes. Partitions that have less than their part leave the rest to the others.

    Where a record is larger than what is left, it is taken nevertheless, but no record of another partition then.
    """
    waiting = _from_turn(sorted(partition for partition in begin if ends[partition] > begin[partition]), turn)
    reached = dict(begin)
    left = limit
    while waiting and left > 0:
        partition = waiting.pop(0)
        part = max(1, left // (len(waiting) + 1))
        reached[partition], used_bytes = sized(partition, begin[partition], ends[partition], part)
        left -= used_bytes
    return reached


def _from_turn(partitions: list[int], turn: int) -> list[int]:
    first = turn % len(partitions) if partitions else 0
    return partitions[first:] + partitions[:first]
