"""The consumer that shares: one handler on one topic, whose group divides the records one by one, as a queue does.

More members than partitions can work, a slow record holds up nothing but itself, and one whose handler takes longer
than its visibility is given to somebody else. The price is order.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Sequence
from typing import Any, Final

from penstock.abc import CheckpointStore, Clock, DeadLetters, Feature, Outcome, Stream, Streams
from penstock.consuming.background import Background
from penstock.consuming.breaker import CircuitBreaker
from penstock.consuming.context import Calling, Context
from penstock.consuming.counts import Counts
from penstock.consuming.dead_letters.headers import redrive_of
from penstock.consuming.dead_letters.opening import open_dead_letters
from penstock.consuming.defaults import Opened, open_checkpoints
from penstock.consuming.delivering import deliver
from penstock.consuming.giving_up import describe, letter_of
from penstock.consuming.handlers import Handler, Wants
from penstock.consuming.health import Health, PartitionHealth
from penstock.consuming.members import member_name
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.retry import NEVER_AGAIN
from penstock.consuming.runners import Gather, Report, decoder_of, failed
from penstock.consuming.shared import Shared
from penstock.consuming.sharing import StreamQueue
from penstock.consuming.tracing import traced
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    GuaranteeError,
    OffsetOutOfRangeError,
    PenstockError,
    StaleDeliveryError,
    StoreUnavailableError,
    StreamError,
)
from penstock.model import CheckpointKey, Failing, Guarantee, Happening, Order, Pointer
from penstock.model.clock import SystemClock
from penstock.model.observing import OBSERVED
from penstock.streams.aliases import current_topic

logger = logging.getLogger(__name__)

DEFAULT_VISIBILITY_S: Final = 30.0
_WAIT_S: Final = 0.2
_AGAIN_S: Final = 1.0
_AT_ONCE: Final = 20
"""Records that a worker takes at a time, and settles with one change where nothing fails."""


def check_can_share(handler: Handler, options: ConsumerOptions) -> None:
    """ConfigError or GuaranteeError for what does not go with sharing records one by one."""
    if options.order is not Order.NONE:
        raise ConfigError(f"{handler.name}: shared=True gives up order: say order='none', or leave it away")
    if options.guarantee is not Guarantee.AT_LEAST_ONCE:
        raise GuaranteeError(
            f"{handler.name}: shared=True gives at-least-once: a record may come to two members in turn"
        )
    for name in ("processes", "idempotency_key", "end"):
        if getattr(options, name):
            raise ConfigError(f"{handler.name}: {name} does not go with shared=True")
    if handler.batch is not None:
        raise ConfigError(f"{handler.name}: batch does not go with shared=True")


class SharedConsumer(Background):
    """Calls a handler for records that its group divides one by one."""

    def __init__(
        self,
        streams: Streams,
        handler: Handler,
        *,
        group: str,
        options: ConsumerOptions,
        checkpoints: str | CheckpointStore | None = None,
        dead_letters: str | DeadLetters | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(handler.name)
        check_can_share(handler, options)
        self.handler = handler
        self.group = group
        self.options = options
        self._streams = streams
        self._clock = clock or SystemClock()
        self._opened: Opened = open_checkpoints(checkpoints, streams, handler, options)
        self.store: CheckpointStore = self._opened.store
        self.stream: Stream = streams.stream(current_topic(streams, handler.topic.name))
        self.dead_letters = None if dead_letters is None else open_dead_letters(dead_letters, streams)
        self._queue = StreamQueue(
            self.stream,
            self.store,
            group,
            member=member_name(),
            visibility_s=options.visibility_s or DEFAULT_VISIBILITY_S,
            clock=self._clock,
            start=options.start,
        )
        self._decode = decoder_of(handler)
        self._gather = Gather(handler, lambda records: deliver(streams, records))
        self._chance = random.Random(options.seed)
        self._breaker = CircuitBreaker(options.breaker, self._clock)
        self._called = handler
        """The handler, as it is called: traced, if somebody traces."""
        self.counts = Counts()
        """What it has done so far. Written under the lock."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._begun = False
        self.processed = 0
        self.delivered = 0
        self.stale = 0
        """Records that were handled too late: somebody else has them."""

    def run(self) -> None:
        self.stream.partitions()  # UnknownTopicError now rather than later
        self._begun = True
        self._called = traced(self.handler, self.group, self.options, OBSERVED.tracer)
        OBSERVED.enter(self)
        threads = [
            threading.Thread(target=self._work, name=f"penstock-{self.handler.name}-{number}", daemon=True)
            for number in range(self.options.workers)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_WAIT_S)
                    if self._stopping.is_set():
                        thread.join(self.options.drain_s)
                        break
        finally:
            OBSERVED.leave(self)
            self._queue.close()
            self._opened.close()
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        """It will not be run after all: let go of what was opened for it."""
        self._opened.close()

    def stop(self) -> None:
        self._stopping.set()
        self._queue.wake()

    def health(self) -> Health:
        """Whether the group gets on, as far as its checkpoints tell."""
        partitions = []
        for key, checkpoint in self.store.checkpoints(self.group).items():
            if key.topic == self.stream.topic:
                end = self.stream.span(key.partition)[1]
                failing = len(checkpoint.failing)
                partitions.append(PartitionHealth(key.partition, checkpoint.start, end, 0, failing, 0.0))
        reason = self._breaker.reason
        problems = (f"the circuit is {self._breaker.circuit}: {reason}",) if reason else ()
        is_running = self._begun and not self._stopping.is_set()
        return Health(
            self.stream.topic, self.group, is_running, tuple(partitions), problems, self.processed, self.delivered
        )

    def history(self, partition: int, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[Happening]:
        """What happened to a record, or in a partition, oldest first."""
        if Feature.HISTORY not in self.store.features:
            raise ConfigError(f"{type(self.store).__name__} has no {Feature.HISTORY}")
        return self.store.history(CheckpointKey(self.group, self.stream.topic, partition), pointer, limit)

    def _work(self) -> None:
        try:
            with asyncio.Runner() as runner:
                while not self._stopping.is_set():
                    with self._lock:
                        is_open = self._breaker.is_open()
                    if is_open:
                        self._stopping.wait(_WAIT_S)
                        continue
                    self._handle_all(self._receive(), runner)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            self._stopping.set()

    def _receive(self) -> Sequence[Shared]:
        try:
            return self._queue.receive(_AT_ONCE, _WAIT_S)
        except OffsetOutOfRangeError as error:
            if self.options.on_expired is None:
                raise
            pointer = max(self.stream.locate(error.partition, self.options.on_expired), error.start)
            logger.error("%s; going on at %d", error, pointer)
            self._queue.skip_to(error.partition, pointer)
        except (StreamError, BrokerUnavailableError, StoreUnavailableError) as error:
            logger.warning("topic %r cannot be received, and is tried again: %s", self.stream.topic, error)
            self._stopping.wait(_AGAIN_S)
        return ()

    def _handle_all(self, deliveries: Sequence[Shared], runner: asyncio.Runner) -> None:
        done: list[Shared] = []
        for number, delivery in enumerate(deliveries):
            if self._stopping.is_set():
                self._settle(deliveries[number:], Outcome.RETRY)
                break
            redrive = redrive_of(delivery.record)
            if redrive is not None and not redrive.is_for(self.group):
                with self._lock:
                    self.counts.ignored += 1
                done.append(delivery)
                continue
            error, trace = self._call(delivery, runner)
            if error is None:
                done.append(delivery)
                if len(deliveries) > 1 and self._is_slow(delivery):
                    self._settle(done, Outcome.DONE)  # before the visibility of those before it is over
                    done = []
            else:
                self._failed(delivery, error, trace)
        self._settle(done, Outcome.DONE)

    def _is_slow(self, delivery: Shared) -> bool:
        taken_s = (self._clock.wall_ms() - delivery.begun_ms) / 1000
        return taken_s > (self.options.visibility_s or DEFAULT_VISIBILITY_S) / 10

    def _call(self, delivery: Shared, runner: asyncio.Runner) -> tuple[BaseException | None, str]:
        report = Report(None, 0)  # type: ignore[arg-type]  # it is only used to gather what the handler gives
        record = delivery.record
        context: Context | None = None
        with self._lock:
            self.processed += 1
        began_s = self._clock.monotonic_s()
        try:
            arguments: list[Any] = []
            for wanted in self._called.wants:
                if wanted is Wants.VALUE:
                    arguments.append(record.value if self._decode is None else self._decode(record.value))
                elif wanted is Wants.RECORD:
                    arguments.append(record)
                else:
                    context = Context(Calling(self.group, None), (record,), 0, delivery.attempt)
                    arguments.append(context)
            result = self._called.function(*arguments)
            if self.handler.is_async:
                result = runner.run(result)
            if result is not None:
                self._gather.take(report, result)
            if context is not None:
                report.outputs.extend(context.outputs)
            self._gather.send(report)
        except Exception as error:
            failed(report, error)
        with self._lock:
            self.counts.handling.add(self._clock.monotonic_s() - began_s)
            if report.error is None:
                self.delivered += 1
                self.counts.succeeded += 1
                self._breaker.succeeded()
            else:
                self.counts.failed += 1
        return report.error, report.trace

    def _failed(self, delivery: Shared, error: BaseException, trace: str) -> None:
        text = describe(error)
        delay_s = self.options.retry.delay_after(delivery.attempt, error, self._chance)
        if delay_s is None and not isinstance(error, NEVER_AGAIN):
            with self._lock:
                if not self._breaker.may_give_up(text):
                    delay_s = max(_WAIT_S, self._breaker.opens_again_in_s)
        if delay_s is not None:
            with self._lock:
                self.counts.retried += 1
            self._settle([delivery], Outcome.RETRY, delay_s, text)
            return
        if self.dead_letters is None:
            raise ConfigError(f"{delivery.record.place}: {text}; there are no dead letters for it to go to") from error
        record = delivery.record
        failing = Failing(record.offset, delivery.attempt, text, delivery.begun_ms, self._clock.wall_ms())
        letter = letter_of(self.handler, self.group, record, error, trace, failing)
        try:
            self.dead_letters.put([letter])
        except PenstockError as problem:
            logger.error("%s: its dead letters cannot be put, and wait: %s", self.handler.name, problem)
            self._settle([delivery], Outcome.RETRY, _AGAIN_S, text)
        else:
            with self._lock:
                self.counts.exhausted += 1
            if OBSERVED.tracer is not None:
                OBSERVED.tracer.gave_up(letter)
            self._settle([delivery], Outcome.REJECT, 0.0, text)

    def _settle(self, deliveries: Sequence[Shared], outcome: Outcome, delay_s: float = 0.0, error: str = "") -> None:
        if not deliveries:
            return
        began_s = self._clock.monotonic_s()
        try:
            late = len(self._queue.settle_all(deliveries, outcome, delay_s, error))
        except StaleDeliveryError:
            late = len(deliveries)
        except StoreUnavailableError as problem:
            logger.warning("%d records could not be settled, and will come again: %s", len(deliveries), problem)
            return
        with self._lock:
            self.stale += late
            self.counts.saving.add(self._clock.monotonic_s() - began_s)
