"""From the statistics of producers, and of connections that send, to metrics."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from penstock.observe import metrics_library as defined
from penstock.producing.engine import Engine
from penstock.streams.kafka.sending import Sender


@dataclass(slots=True)
class _Sums:
    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    dropped: int = 0
    expired: int = 0
    retried: int = 0

    def add(self, other: _Sums) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class ProducerTotals:
    """Sums over all producers that keep records in the same way: those in use, and those that were closed."""

    def __init__(self) -> None:
        self._gone: dict[str, _Sums] = {}
        self._lock = threading.Lock()

    def left(self, part: object) -> None:
        if isinstance(part, Engine | Sender):
            with self._lock:
                self._gone.setdefault(_buffer(part), _Sums()).add(_sums(part))

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        in_use = [each for each in parts if isinstance(each, Engine | Sender)]
        with self._lock:
            totals = {buffer: dataclasses.replace(sums) for buffer, sums in self._gone.items()}
        for each in in_use:
            totals.setdefault(_buffer(each), _Sums()).add(_sums(each))
        yield from _counted(totals)
        yield from _waiting(in_use)


def _buffer(part: Engine | Sender) -> str:
    """Where it keeps what is not acknowledged."""
    if isinstance(part, Sender):
        return "connection"
    return "spool" if part.durable else "memory"


def _sums(part: Engine | Sender) -> _Sums:
    if isinstance(part, Sender):
        sent, failed = part.sent, part.failed
        return _Sums(sent, max(0, sent - failed - part.unacknowledged), expired=failed)
    stats = part.stats()
    return _Sums(stats.sent, stats.delivered, stats.refused, stats.dropped, stats.failed, stats.retried)


def _counted(totals: dict[str, _Sums]) -> Iterator[Metric]:
    sent, acknowledged = defined.PRODUCER_SENT.counter(), defined.PRODUCER_ACKNOWLEDGED.counter()
    failed, retries = defined.PRODUCER_FAILED.counter(), defined.PRODUCER_RETRIES.counter()
    for buffer, sums in totals.items():
        sent.add_metric([buffer], sums.sent)
        acknowledged.add_metric([buffer], sums.acknowledged)
        for reason in ("refused", "dropped", "expired"):
            failed.add_metric([buffer, reason], getattr(sums, reason))
        retries.add_metric([buffer], sums.retried)
    yield from (sent, acknowledged, failed, retries)


def _waiting(in_use: Iterable[Engine | Sender]) -> Iterator[Metric]:
    records: dict[str, int] = {}
    size_bytes: dict[str, int] = {}
    oldest_s: dict[str, float] = {}
    for part in in_use:
        buffer = _buffer(part)
        if isinstance(part, Sender):
            records[buffer] = records.get(buffer, 0) + part.unacknowledged
            continue
        stats = part.stats()
        records[buffer] = records.get(buffer, 0) + stats.buffered
        size_bytes[buffer] = size_bytes.get(buffer, 0) + stats.buffered_bytes
        oldest_s[buffer] = max(oldest_s.get(buffer, 0.0), stats.oldest_age_s)
    for definition, values in (
        (defined.PRODUCER_BUFFERED, records),
        (defined.PRODUCER_BUFFERED_BYTES, size_bytes),
        (defined.PRODUCER_OLDEST, oldest_s),
    ):
        family = definition.gauge()
        for buffer, value in values.items():
            family.add_metric([buffer], value)
        yield family
