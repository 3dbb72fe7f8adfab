"""Marks: which batch of which query was delivered last, in a compacted topic beside the topics that it went to.

A mark is written in the transaction that delivers its batch, as the last record of it: the batch counts if and only if
its mark does. So whoever reads the mark knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.errors import PipelineError, StreamError
from penstock.model import Position
from penstock.streams.kafka.connection import Connection

TOPIC: Final = "penstock.spark.batches"
NOTHING: Final = -1
"""The batch of a query that has delivered none."""

_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # Only what is not in the newest segment is compacted, and all of it is read when a target is opened.
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_AT_ONCE: Final = 5_000
_WAIT_S: Final = 0.1
_PATIENCE_S: Final = 3.0
"""How long somebody else's transaction may stand in the way before something is done about it."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one target of one query."""

    pipeline: str
    query: str
    target: str
    run: str
    """Which run of the query has opened the target last: any other is fenced."""
    epoch: int
    """How many runs have."""
    batch: int
    """The batch that was delivered last."""
    rows: int
    """How many rows that had."""


class Marks:
    """The marks of all queries, read as far as somebody asked. Used by one thread."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        connection.administration.provide(TOPIC, 1, _SETTINGS)
        self._topics = connection.administration
        self._stream = connection.stream(TOPIC)
        self._timeout_s = timeout_s
        self._next = self._stream.locate(0, Position.EARLIEST)
        self._found: dict[bytes, bytes] = {}

    def find(self, key: bytes) -> Mark | None:
        """The mark under a key, as of the last look. PipelineError when what stands there is none."""
        value = self._found.get(key)
        try:
            return None if value is None else msgspec.json.decode(value, type=Mark)
        except msgspec.DecodeError as error:
            raise PipelineError(
                f"topic {TOPIC!r} has a record under {key!r} that is no mark of a batch ({error}): something else "
                "writes to it. What was delivered cannot be told; see who that is"
            ) from error

    def wrote(self, key: bytes, mark: Mark) -> None:
        """It was committed by us, and need not be read to be known."""
        self._take(key, encode(mark))

    def keys(self) -> list[bytes]:
        """Of all marks, those written last at the end."""
        return list(self._found)

    def look(self) -> None:
        """Read what was committed by now, as far as open transactions of others let us see."""
        self._read(self._topics.latest(TOPIC, [0])[0], None)

    def look_to_the_end(self, when_stuck: Callable[[], None]) -> None:
        """Read all there is. A transaction that is open must end first; `when_stuck` may see to that."""
        self._read(self._topics.ends(TOPIC, [0])[0], when_stuck)

    def close(self) -> None:
        self._stream.close()

    def _read(self, end: int, when_stuck: Callable[[], None] | None) -> None:
        begun_s = time.monotonic()
        while self._next < end:
            batch = self._stream.read(0, self._next, _AT_ONCE, _WAIT_S)
            for key, value in zip(batch.keys(), batch.values(), strict=True):
                self._take(key, value)
            self._next = batch.next
            waited_s = time.monotonic() - begun_s
            if waited_s > self._timeout_s:
                raise StreamError(
                    f"topic {TOPIC!r} could not be read to its end within {self._timeout_s:g} s: the broker does not "
                    "answer, or somebody's transaction is open there"
                )
            if when_stuck is not None and waited_s > _PATIENCE_S:
                when_stuck()
                when_stuck = None

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return  # not of our making: a compacted topic has no such records
        self._found.pop(key, None)  # so that those written last are at the end
        if value is not None:
            self._found[key] = value


def encode(mark: Mark) -> bytes:
    return msgspec.json.encode(mark)
