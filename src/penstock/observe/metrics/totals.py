"""From the counts of consumers, deadlines, producers and inboxes to metrics, including those that have ended."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from penstock.channels.inbox import Inbox
from penstock.consuming.counts import BOUNDS_S, Counts, Timings
from penstock.consuming.deadlines.statistics import Counting, DeadlineStatistics
from penstock.consuming.health import STALLED_S, Health
from penstock.consuming.loop_consumer import LoopConsumer
from penstock.errors import ClosedError
from penstock.observe.metrics import library as defined
from penstock.observe.metrics.definition import Definition
from penstock.producing.engine import Engine
from penstock.streams.sending import CountingSender
from penstock.tables import Capture, Relay, Table
from penstock.tables.events import Projection
from penstock.tables.table import TableFreshness

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 1.0
"""How long a scrape waits for all answers together. Then it uses the last known ones."""
_KNOWN_FOR_S: Final = 60.0


class HasHealth(Protocol):
    def health(self) -> Health: ...


class _HealthCheck:
    """A pending question to one consumer, and its last answer."""

    def __init__(self, consumer: HasHealth) -> None:
        self.consumer = consumer
        self.answered = threading.Event()
        self.answered.set()
        self.health: Health | None = None
        self.at_s = 0.0
        self._told = ""

    def ask(self) -> None:
        if self.answered.is_set():  # else the last question is still pending
            self.answered.clear()
            threading.Thread(target=self._ask, name="penstock-metrics-health", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.health = self.consumer.health()
            self.at_s = time.monotonic()
            self._told = ""
        except Exception as error:
            if self._told != str(error):
                self._told = str(error)
                logger.warning("the health of a consumer is unknown: %s", error)
        finally:
            self.answered.set()


class HealthChecks:
    """Asks each consumer in its own thread, and caches the answers."""

    def __init__(self) -> None:
        self._questions: dict[HasHealth, _HealthCheck] = {}
        self._lock = threading.Lock()

    def ask(self, consumers: Iterable[HasHealth], patience_s: float = PATIENCE_S) -> list[Health | None]:
        """The health of each, in their order; None where it is unknown."""
        with self._lock:
            known = self._questions
            asked = [known[each] if each in known else _HealthCheck(each) for each in consumers]
            self._questions = {question.consumer: question for question in asked}
        for question in asked:
            question.ask()
        until_s = time.monotonic() + patience_s
        for question in asked:
            question.answered.wait(max(0.0, until_s - time.monotonic()))
        now_s = time.monotonic()
        return [each.health if now_s - each.at_s < _KNOWN_FOR_S else None for each in asked]


Labels = tuple[str, str, str]

_CHANGES: Final = ("assigned", "revoked", "lost")
_OUTCOMES: Final = ("succeeded", "failed", "exhausted", "ignored")


class ConsumerTotals:
    """Sums over all consumers with the same labels, running or ended."""

    def __init__(self) -> None:
        self._gone: dict[Labels, Counts] = {}
        self._asking = HealthChecks()
        self._lock = threading.Lock()

    def left(self, part: object) -> None:
        if isinstance(part, LoopConsumer):
            with self._lock:
                self._gone.setdefault(labels_of(part), Counts()).add(part.counts)

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        consumers = [each for each in parts if isinstance(each, LoopConsumer)]
        with self._lock:
            totals = copy.deepcopy(self._gone)
        for each in consumers:
            totals.setdefault(labels_of(each), Counts()).add(each.counts)
        yield from _counted(totals)
        healths = self._asking.ask(consumers)
        yield from _standing([(labels_of(each), health) for each, health in zip(consumers, healths, strict=True)])


def labels_of(consumer: LoopConsumer) -> Labels:
    return consumer.group, consumer.handler.topic.name, consumer.handler.name


def _counted(totals: dict[Labels, Counts]) -> Iterator[Metric]:
    records, changes = defined.CONSUMER_RECORDS.counter(), defined.CONSUMER_REBALANCES.counter()
    retries, letters = defined.CONSUMER_RETRIES.counter(), defined.CONSUMER_DEAD_LETTERS.counter()
    expired = defined.CONSUMER_EXPIRED.counter()
    handling, saving = defined.CONSUMER_HANDLER_SECONDS.histogram(), defined.CONSUMER_SAVE_SECONDS.histogram()
    for labels, counts in totals.items():
        for outcome in _OUTCOMES:
            records.add_metric((*labels, outcome), getattr(counts, outcome))
        for change in _CHANGES:
            changes.add_metric((*labels, change), getattr(counts, change))
        retries.add_metric(labels, counts.retried)
        letters.add_metric(labels, counts.exhausted)
        expired.add_metric(labels, counts.expired)
        add_timings(handling, labels, counts.handling)
        add_timings(saving, labels, counts.saving)
    yield from (records, retries, handling, letters, expired, saving, changes)


def add_timings(family: HistogramMetricFamily, labels: Sequence[str], timings: Timings) -> None:
    bounds = [*map(floatToGoString, BOUNDS_S), "+Inf"]
    family.add_metric(labels, list(zip(bounds, itertools.accumulate(timings.steps), strict=True)), timings.total_s)


def _standing(found: Sequence[tuple[Labels, Health | None]]) -> Iterator[Metric]:
    in_flight, failing = defined.CONSUMER_IN_FLIGHT.gauge(), defined.CONSUMER_FAILING.gauge()
    lag, partitions = defined.CONSUMER_LAG.gauge(), defined.CONSUMER_PARTITIONS.gauge()
    stalled, healthy = defined.CONSUMER_STALLED.gauge(), defined.CONSUMER_HEALTHY.gauge()
    by_labels: dict[Labels, list[Health | None]] = {}
    for labels, health in found:
        by_labels.setdefault(labels, []).append(health)
    for labels, healths in by_labels.items():
        known = [health for health in healths if health is not None]
        healthy.add_metric(labels, len(known) == len(healths) and all(each.is_healthy for each in known))
        if len(known) < len(healths):
            continue
        held = [partition for health in known for partition in health.partitions]
        in_flight.add_metric(labels, sum(each.in_flight for each in held))
        failing.add_metric(labels, sum(each.failing for each in held))
        partitions.add_metric(labels, len(held))
        stalled.add_metric(labels, sum(each.is_behind and each.idle_s >= STALLED_S for each in held))
        lags = [health.lag for health in known]
        if None not in lags:
            lag.add_metric(labels, sum(each for each in lags if each is not None))
    yield from (in_flight, failing, lag, partitions, stalled, healthy)


Sample = tuple[Definition, tuple[str, ...]]
"""A counter and its labels."""


class CountTotals:
    """Sums over all deadlines, producers and inboxes with the same labels, in use or ended."""

    def __init__(self) -> None:
        self._gone: Counter[Sample] = Counter()
        self._lock = threading.Lock()

    def left(self, part: object) -> None:
        with self._lock:
            self._gone.update(_numbers_of(part))

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        in_use = list(parts)
        with self._lock:
            totals = Counter(self._gone)
        for part in in_use:
            totals.update(_numbers_of(part))
        families = {definition: definition.counter() for definition in _COUNTERS}
        for (definition, labels), number in totals.items():
            families[definition].add_metric(labels, number)
        yield from families.values()
        yield _running(each.snapshot() for each in in_use if isinstance(each, Counting))
        yield from _buffered(each for each in in_use if isinstance(each, Engine | CountingSender))


_COUNTERS: Final = (
    *(defined.DEADLINE_CALLS, defined.DEADLINE_OVERDUE, defined.DEADLINE_ANSWERS),
    *(defined.PRODUCER_SENT, defined.PRODUCER_ACKNOWLEDGED, defined.PRODUCER_FAILED, defined.PRODUCER_RETRIES),
    defined.INBOX_RECORDS,
)
_ANSWER_OUTCOMES: Final = ("answered", "failed", "late", "busy", "skipped")


def _numbers_of(part: object) -> dict[Sample, int]:
    if isinstance(part, Counting):
        return _deadline_numbers(part.snapshot())
    if isinstance(part, Engine | CountingSender):
        return _producer_numbers(part)
    if isinstance(part, Inbox):
        numbers = {"stored": part.counts.stored, "refused": part.counts.refused, "lost": part.lost}
        return {(defined.INBOX_RECORDS, (part.topic, outcome)): number for outcome, number in numbers.items()}
    return {}


def _deadline_numbers(statistics: DeadlineStatistics) -> dict[Sample, int]:
    analysers = ",".join(statistics.analysers)
    numbers: dict[Sample, int] = {
        (defined.DEADLINE_OVERDUE, (analysers,)): statistics.overdue,
        (defined.DEADLINE_CALLS, (analysers, "complete")): statistics.complete,
        (defined.DEADLINE_CALLS, (analysers, "partial")): statistics.partial,
    }
    for name, each in statistics.analysers.items():
        for outcome in _ANSWER_OUTCOMES:
            numbers[defined.DEADLINE_ANSWERS, (analysers, name, outcome)] = getattr(each, outcome)
    return numbers


def _running(in_use: Iterable[DeadlineStatistics]) -> Metric:
    at_work: Counter[tuple[str, str]] = Counter()
    for statistics in in_use:
        analysers = ",".join(statistics.analysers)
        at_work.update({(analysers, name): each.running for name, each in statistics.analysers.items()})
    family = defined.DEADLINE_RUNNING.gauge()
    for labels, number in at_work.items():
        family.add_metric(labels, number)
    return family


def _buffer(part: Engine | CountingSender) -> str:
    """Where it keeps unacknowledged records."""
    if isinstance(part, CountingSender):
        return "connection"
    return "spool" if part.durable else "memory"


def _producer_numbers(part: Engine | CountingSender) -> dict[Sample, int]:
    buffer = _buffer(part)
    if isinstance(part, CountingSender):
        sent, failed, retried = part.sent, {"refused": 0, "dropped": 0, "expired": part.failed}, 0
        acknowledged = max(0, sent - part.failed - part.unacknowledged)
    else:
        stats = part.stats()
        sent, acknowledged, retried = stats.sent, stats.delivered, stats.retried
        failed = {"refused": stats.refused, "dropped": stats.dropped, "expired": stats.failed}
    return {
        (defined.PRODUCER_SENT, (buffer,)): sent,
        (defined.PRODUCER_ACKNOWLEDGED, (buffer,)): acknowledged,
        (defined.PRODUCER_RETRIES, (buffer,)): retried,
        **{(defined.PRODUCER_FAILED, (buffer, reason)): number for reason, number in failed.items()},
    }


def _buffered(in_use: Iterable[Engine | CountingSender]) -> Iterator[Metric]:
    records: dict[str, int] = {}
    size_bytes: dict[str, int] = {}
    oldest_s: dict[str, float] = {}
    for part in in_use:
        buffer = _buffer(part)
        if isinstance(part, CountingSender):
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


class CaptureTotals:
    """Sums over all captures with the same name, running or ended."""

    def __init__(self) -> None:
        self._gone: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def left(self, part: object) -> None:
        if isinstance(part, Capture):
            with self._lock:
                self._gone[part.name] = _captured(part, self._gone)

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        captures = [each for each in parts if isinstance(each, Capture)]
        with self._lock:
            totals = dict(self._gone)
        for each in captures:
            totals[each.name] = _captured(each, totals)
        changes, rows = defined.CAPTURE_CHANGES.counter(), defined.CAPTURE_ROWS.counter()
        for name, (changed, read) in totals.items():
            changes.add_metric([name], changed)
            rows.add_metric([name], read)
        yield from (changes, rows)
        lag, room, loss = (
            definition.gauge()
            for definition in (defined.CAPTURE_LAG_BYTES, defined.CAPTURE_ROOM_BYTES, defined.CAPTURE_TIME_TO_LOSS)
        )
        for each in captures:
            progress = each.progress
            for family, number in (
                (lag, progress.lag_bytes),
                (room, progress.room_bytes),
                (loss, progress.time_to_loss_s),
            ):
                if number is not None:
                    family.add_metric([each.name], number)
        yield from (lag, room, loss)


class RelayTotals:
    """Sums over all relays of outboxes with the same name, running or ended."""

    def __init__(self) -> None:
        self._gone: Counter[str] = Counter()
        self._lock = threading.Lock()

    def left(self, part: object) -> None:
        if isinstance(part, Relay):
            with self._lock:
                self._gone[part.name] += part.delivered

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        relays = [each for each in parts if isinstance(each, Relay)]
        with self._lock:
            totals = Counter(self._gone)
        delivered = defined.OUTBOX_DELIVERED.counter()
        waiting, oldest, problem = (
            definition.gauge() for definition in (defined.OUTBOX_WAITING, defined.OUTBOX_OLDEST, defined.OUTBOX_PROBLEM)
        )
        for each in relays:
            totals[each.name] += each.delivered
            problem.add_metric([each.name], each.problem is not None)
            if each.waiting is not None:
                oldest_ms = each.oldest_ms
                waiting.add_metric([each.name], each.waiting)
                oldest.add_metric([each.name], 0 if oldest_ms is None else max(0, time.time() - oldest_ms / 1000))
        for name, count in totals.items():
            delivered.add_metric([name], count)
        yield from (delivered, waiting, oldest, problem)


class TableGauges:
    """The tables of topics and the projections that run."""

    def left(self, part: object) -> None:
        """Nothing: there are no counts of what has ended."""

    def collect(self, parts: Iterable[object]) -> Iterator[Metric]:
        rows, problems, caught_up, built = (
            definition.gauge()
            for definition in (
                defined.TABLE_ROWS,
                defined.TABLE_PROBLEM,
                defined.TABLE_CAUGHT_UP,
                defined.PROJECTION_BUILT,
            )
        )
        tables: dict[str, list[TableFreshness]] = {}
        for each in parts:
            if isinstance(each, Table):
                with contextlib.suppress(ClosedError):  # it was closed in this moment
                    tables.setdefault(each.topic.name, []).append(each.progress)
            elif isinstance(each, Projection):
                built.add_metric([each.name, str(each.version)], each.is_built)
        for topic, found in tables.items():
            rows.add_metric([topic], max(each.rows for each in found))
            problems.add_metric([topic], any(each.problem is not None for each in found))
            caught_up.add_metric([topic], all(each.is_caught_up for each in found))
        yield from (rows, problems, caught_up, built)


def _captured(capture: Capture, totals: dict[str, tuple[int, int]]) -> tuple[int, int]:
    changes, rows = totals.get(capture.name, (0, 0))
    progress = capture.progress
    return changes + progress.changes, rows + progress.snapshot_rows
