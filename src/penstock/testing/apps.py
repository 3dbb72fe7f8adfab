"""Running an app in a test over everything in its topics, with the outcome."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.abc import Stream
from penstock.app import App
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import ConfigError
from penstock.model import DeadLetter, DeadLetterFilter, Pointer, Record
from penstock.serde import Topic
from penstock.streams.connecting import open_stream

T = TypeVar("T")

_SETTLE_S: Final = 30.0
_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class RunResult:
    handled: int
    """Records whose handler returned."""
    retried: int
    """Attempts that failed and were followed by another."""
    dead_letters: Sequence[DeadLetter]
    """Records that were given up, oldest first."""
    records: Sequence[Record]
    """Everything that was written to any topic meanwhile, including dead letters."""

    def sent(self, topic: Topic[T]) -> list[T]:
        """The values sent to a topic, partition by partition, without records that have no value."""
        decoded = (topic.decode(record.value) for record in self.records if record.topic == topic.name)
        return [value for value in decoded if value is not None]


def run_to_end(app: App) -> RunResult:
    """Handle everything that is in the topics of an app now, including retries, and return.

    Raises what the app raises. An app on `memory:` keeps its progress in memory for one run: the next one handles
    everything again, unless the app has its own `checkpoints`.
    """
    with _stream_of(app) as stream:
        flush = getattr(stream, "flush", None)
        if flush is not None:
            flush(_SETTLE_S)
        before = {topic: _ends(stream, topic) for topic in stream.topics()}
        known = {letter.id for letter in _letters(app, stream)}
        app.run(end="latest")
        counts = [consumer.counts for consumer in app.consumers]
        return RunResult(
            handled=sum(each.succeeded for each in counts),
            retried=sum(each.retried for each in counts),
            dead_letters=[letter for letter in _letters(app, stream) if letter.id not in known],
            records=[record for topic in stream.topics() for record in _written(stream, topic, before.get(topic, {}))],
        )


@contextlib.contextmanager
def _stream_of(app: App) -> Iterator[Stream]:
    if app.stream is None:
        raise ConfigError("run_to_end needs an app with a stream: a queue has no end")
    if not isinstance(app.stream, str):
        yield app.stream
        return
    opened = open_stream(app.stream)
    try:
        yield opened
    finally:
        opened.close()


def _letters(app: App, stream: Stream) -> list[DeadLetter]:
    letters: dict[str, DeadLetter] = {}
    for declared in itertools.chain.from_iterable(each.found(stream) for each in app.declared):
        if declared.dead_letters is None:
            continue
        opened = open_dead_letters(declared.dead_letters, stream)
        try:
            letters.update((letter.id, letter) for letter in opened.browse(DeadLetterFilter()))
        finally:
            if opened is not declared.dead_letters:
                opened.close()
    return sorted(letters.values(), key=lambda letter: letter.last_ms)


def _ends(stream: Stream, topic: str) -> dict[int, Pointer]:
    opened = stream.open_topic(topic)
    return {partition: opened.span(partition)[1] for partition in opened.partitions()}


def _written(stream: Stream, topic: str, before: dict[int, Pointer]) -> Iterator[Record]:
    opened = stream.open_topic(topic)
    for partition in opened.partitions():
        first, end = opened.span(partition)
        pointer = max(first, before.get(partition, first))
        while pointer < end:
            batch = opened.read(partition, pointer, _AT_ONCE, _SETTLE_S)
            yield from (record for record in batch if record.offset < end)
            if batch.next == pointer:
                raise TimeoutError(f"{topic}-{partition} could not be read from {pointer} to its end at {end}")
            pointer = batch.next
