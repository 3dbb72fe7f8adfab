"""The suite for buffers finds what is wrong with a buffer."""

from __future__ import annotations

import fcntl
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.abc import Feature
from penstock.errors import BufferFullError
from penstock.model import NewRecord
from penstock.producing.buffers import MemoryBuffer
from penstock.producing.spooling import Spool
from penstock.testing.conformance.buffers import buffer


class NewestFirst(MemoryBuffer):
    def peek(self, after: int, limit: int, limit_bytes: int) -> Any:
        return list(reversed(super().peek(after, limit, limit_bytes)))


class Forgetful(MemoryBuffer):
    def commit(self, through: int) -> None: ...


class DropsNewest(MemoryBuffer):
    def drop(self, count: int, after: int = -1) -> Any:
        return super().drop(count, max(after, self.end - 1 - count))


class TakesSome(MemoryBuffer):
    def put(self, records: Sequence[NewRecord]) -> int:
        try:
            return super().put(records)
        except BufferFullError:
            super().put(records[:1])
            raise


class Shared(MemoryBuffer):
    """Says that it is durable, and is not."""

    @property
    def features(self) -> Any:
        return frozenset({Feature.DURABLE})


class CountsWrong(MemoryBuffer):
    def __len__(self) -> int:
        return super().__len__() + 1


class Careless(Spool):
    """Puts records together one by one, so that a kill may leave some of them."""

    def put(self, records: Sequence[NewRecord]) -> int:
        first = super().put(records[:1])
        for record in records[1:]:
            super().put([record])
        return first


class WithoutLock(Spool):
    """Lets everybody in."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        fcntl.flock(self._lock_fd, fcntl.LOCK_UN)


def open_shared(folder: Path) -> Shared:
    return Shared()


def open_careless(folder: Path) -> Careless:
    return Careless(folder / "spool", segment_bytes=4096)


def open_without_lock(folder: Path) -> WithoutLock:
    return WithoutLock(folder / "spool")


@pytest.mark.parametrize(
    ("factory", "case"),
    [
        (NewestFirst, "test_records_come_out_as_they_went_in_and_in_their_order"),
        (Forgetful, "test_what_is_committed_is_not_given_again"),
        (DropsNewest, "test_the_oldest_are_dropped"),
        (lambda: TakesSome(10), "test_a_full_buffer_takes_none_of_what_does_not_fit"),
        (CountsWrong, "test_a_new_buffer_is_empty"),
        (open_shared, "test_what_is_not_committed_is_there_when_it_is_opened_again"),
        (open_shared, "test_what_was_put_survives_a_kill"),
        (open_careless, "test_a_put_that_was_cut_at_any_byte_is_there_whole_or_not_at_all"),
        (open_without_lock, "test_a_second_owner_is_refused_until_the_first_has_ended"),
    ],
)
def test_a_broken_buffer_fails_the_case_that_is_about_it(factory: Callable[..., Any], case: str) -> None:
    cases = buffer(factory, limited=factory)
    result = unittest.TestResult()
    cases(case).run(result)
    assert len(result.failures) + len(result.errors) == 1
    assert not result.skipped
