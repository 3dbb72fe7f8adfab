"""`KeyGuard`: calls a stateful function so that an error costs the row that fails, not the batch.

The changes of a call are held back until it succeeds. When it fails for the rows of a key, it is called with each row
alone, in a buffer that keeps the changes of the rows before: so the failing rows are found. Then it is called once more
with all others, as if the failing rows had not arrived. If they fail together although none of them fails alone, what
the calls with single rows gave counts, as if each row had come in a batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.spark.errors.reports import Reporter
from penstock.spark.state.buffers import KeyBuffer
from penstock.spark.state.context import KeyStates

MOST_ROWS: Final = 100_000
"""How many rows of one key in one batch are held in memory. Above this number, an error fails the batch."""

Call = Callable[[Iterator[Any], KeyStates], Iterable[Any]]
"""Calls the function for some rows of the current key, with these states. The answer has its output rows."""
Described = Callable[[Any], tuple[str | None, str]]
"""The origin of a row, and the row as JSON."""


@dataclass(frozen=True, slots=True)
class _Layer:
    buffer: KeyBuffer
    states: KeyStates
    """What functions see of the buffer."""


class KeyGuard:
    """Guards the function, and the function for timers, in one task."""

    def __init__(
        self,
        rows: Reporter,
        timers: Reporter,
        buffer: KeyBuffer,
        states: Callable[[KeyBuffer], KeyStates],
    ) -> None:
        """`buffer` stands before the states of Spark; `states` makes what functions see of a buffer."""
        self._rows = rows
        self._timers = timers
        self._errors = buffer.errors
        self._first, self._second, self._single = (
            _Layer(each, states(each)) for each in (buffer, buffer.beside(), buffer.nested())
        )

    def rows(self, rows: Iterator[Any], call: Call, described: Described) -> list[Any]:
        """What the function gives for the rows of the current key. The failing ones are reported."""
        kept = _KeptRows(rows, self._first.buffer.commit)
        try:
            return self._called(call, kept, self._first)
        except Exception:
            kept.read_all()
            if kept.overflowed or kept.is_broken or self._errors.first is not None:
                raise
        finally:
            self._rows.count.seen += kept.count
        return self._without_the_failing(kept.rows, call, described)

    def timer(self, call: Call, described: str) -> list[Any]:
        """What the function for timers gives. If it fails, its timer is reported, and is gone."""
        self._timers.count.seen += 1
        try:
            return self._called(call, iter(()), self._first)
        except Exception as error:
            if self._errors.first is not None:
                raise
            self._timers.failed(error, None, described)
            return []

    def _without_the_failing(self, rows: list[Any], call: Call, described: Described) -> list[Any]:
        single: list[Any] = []
        good: list[Any] = []
        failed: list[tuple[Any, Exception]] = []
        for row in rows:
            try:
                single += self._called(call, iter((row,)), self._single)
                good.append(row)
            except Exception as error:
                if self._errors.first is not None:
                    raise
                failed.append((row, error))
        for row, problem in failed:
            self._rows.failed(problem, *described(row))
        if failed and good:
            try:
                together = self._called(call, iter(good), self._second)
            except Exception:
                if self._errors.first is not None:
                    raise
            else:
                self._first.buffer.discard()
                return together
        self._first.buffer.commit()
        return single

    def _called(self, call: Call, rows: Iterator[Any], layer: _Layer) -> list[Any]:
        """The output of one call, whose changes are committed if it succeeds, and dropped otherwise."""
        try:
            output = list(call(rows, layer.states))
        except BaseException:
            layer.buffer.discard()
            raise
        layer.buffer.commit()
        return output


class _KeptRows:
    """Iterates over the rows of a key, and keeps them, up to `MOST_ROWS`, to be read again."""

    def __init__(self, rows: Iterator[Any], when_many: Callable[[], None]) -> None:
        """`when_many` is called each time that so many rows were read."""
        self._given = rows
        self._when_many = when_many
        self.rows: list[Any] = []
        self.count = 0
        self.is_broken = False
        """Whether the rows could not be read: no row is to blame for that."""

    @property
    def overflowed(self) -> bool:
        return self.count > MOST_ROWS

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            row = next(self._given)
        except StopIteration:
            raise
        except Exception:
            self.is_broken = True
            raise
        self._add(row)
        return row

    def read_all(self) -> None:
        """Also keep the rows that the function has not read."""
        for row in self._given:
            self._add(row)

    def _add(self, row: Any) -> None:
        self.count += 1
        if self.count <= MOST_ROWS:
            self.rows.append(row)
            return
        self.rows.clear()
        if self.count % MOST_ROWS == 1:  # what the function has changed so far stays: nothing undoes it any more
            self._when_many()
