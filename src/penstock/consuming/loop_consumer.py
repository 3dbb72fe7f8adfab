"""What consumers of streams and of queues have in common: a handler, its workers, and the loop that runs them."""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from penstock.abc import Clock, Stream, Tracer
from penstock.consuming.counts import Counts
from penstock.consuming.destinations import Destination, send_to
from penstock.consuming.handlers import Handler, HandlerArgument
from penstock.consuming.health import Health
from penstock.consuming.loop.loop import Loop
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.stages import Stages
from penstock.consuming.workers.lanes import Lanes, Task
from penstock.consuming.workers.middlewares import middleware_wrapper, with_middlewares
from penstock.consuming.workers.pool import AsyncRunner, AsyncWorkers, ThreadWorkers, Workers
from penstock.consuming.workers.processes import CallWrapper, ProcessRunner
from penstock.consuming.workers.runners import (
    BatchRunner,
    CallBuilder,
    OutputCollector,
    RecordRunner,
    Report,
    Runner,
    TreeRunner,
    ValueRunner,
    deliver,
)
from penstock.consuming.workers.tracing import traced, tracing_wrapper
from penstock.errors import ConfigError, GroupError, HandlerError
from penstock.model import Guarantee, NewRecord
from penstock.model.clock import SystemClock
from penstock.model.observing import OBSERVED
from penstock.serde import Topic
from penstock.streams.declared import provider_of


class Background(ABC):
    """Runs until stopped: `run` in the caller's thread, or `start` and `wait` in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @abstractmethod
    def run(self) -> None:
        """Return when stopped or done. Raises the error that ended it."""

    @abstractmethod
    def stop(self) -> None:
        """Make `run` return soon. Thread-safe; does not wait."""

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-{self._name}", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the started thread and raise its error; False when it still runs after `timeout_s`."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error


class LoopConsumer(Background):
    """Call a handler for records, with retries, dead letters, a circuit breaker, middlewares, tracing and counts.

    `run` consumes in the calling thread until stopped; `start` does so in a thread of its own.
    """

    def __init__(
        self,
        stream: Stream | None,
        handler: Handler,
        *,
        group: str,
        options: ConsumerOptions,
        clock: Clock | None,
        stages: Stages | None,
    ) -> None:
        if not group or not isinstance(group, str):
            raise GroupError("a consumer needs a group: the name under which its progress is kept")
        super().__init__(handler.name)
        self.handler = handler
        self.group = group
        self.options = options
        self._stream = stream
        """Where outputs go."""
        self._clock = clock or SystemClock()
        self._stages = stages
        self._destination: Destination | None = None
        """Where results go instead of the stream."""
        self._owns_destination = False
        self._loop: Loop | None = None
        self.counts = Counts()
        """Totals so far."""
        self._stopped = threading.Event()
        self._has_ended = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Consume until `stop` is called or `end` is reached. Raises the error that ended it."""
        if self._loop is not None:
            raise ConfigError(f"the consumer of {self.handler.topic.name!r} can run only once: create another")
        try:
            if not self._wait_until_ready():
                return
            with self._lock:
                self._loop = self._make_loop()
                if self._stopped.is_set():
                    self._loop.stop()
            OBSERVED.enter(self)
            try:
                if not self._loop.is_stopping:
                    self._loop.run()
            finally:
                OBSERVED.leave(self)
        finally:
            self._has_ended = True
            self.abandon()

    @property
    def is_running(self) -> bool:
        """Whether its loop has begun and not ended."""
        return self._loop is not None and not self._has_ended

    def send_results_to(self, destination: Destination, *, owned: bool) -> None:
        """Send what the handler returns there, instead of to a topic. An `owned` one is closed at the end."""
        self._destination = destination
        self._owns_destination = owned

    def stop(self) -> None:
        """Stop reading, let handlers finish, save what they finished. Thread-safe; returns at once."""
        with self._lock:
            self._stopped.set()
            loop = self._loop
        if loop is not None:
            loop.stop()

    def abandon(self) -> None:
        """Close what was opened for this consumer."""
        if self._destination is not None and self._owns_destination:
            self._destination.close()

    @abstractmethod
    def health(self) -> Health:
        """Whether the consumer makes progress, and the problems if it does not."""

    def stuck(self) -> str:
        """Why a restart of the process would help; "" while it would not."""
        return "" if self._loop is None else self._loop.stuck()

    def unready(self) -> str:
        """Why nothing can be handled yet, apart from the problems in `health`; "" when ready."""
        return "it has not been started" if self._loop is None else self._loop.unready()

    @abstractmethod
    def _wait_until_ready(self) -> bool:
        """Wait until there is something to read from. False when stopped first."""

    @abstractmethod
    def _make_loop(self) -> Loop: ...

    def _make_workers(
        self,
        lanes: Lanes,
        send_report: Callable[[Report], None],
        *,
        sends_outputs: bool = True,
        with_state: bool = False,
    ) -> Workers:
        """The workers of the handler. Without `sends_outputs`, the loop sends what it returns."""
        options, handler = self.options, self.handler
        if not options.processes:
            handler = traced(with_middlewares(handler), self.group, options, OBSERVED.tracer)
        collector = OutputCollector(handler, self._send if sends_outputs else None)
        call_builder = CallBuilder(handler, self.group, with_state, options.idempotency_key, self._provide())
        if handler.is_async:
            runner = AsyncRunner(handler, collector, call_builder)
            return AsyncWorkers(options.workers, runner, lanes, send_report, handler.name)
        make_runner = functools.partial(self._make_runner, handler, collector, call_builder)
        return ThreadWorkers(options.workers, make_runner, lanes, send_report, handler.name)

    def _make_runner(self, handler: Handler, collector: OutputCollector, call_builder: CallBuilder) -> Runner:
        options = self.options
        if self._is_root:
            assert self._stages is not None
            tree_runner = TreeRunner(handler, collector, call_builder, self._stages, options.tree_timeout_s)
            tree_runner.tree_ended = self._tree_ended
            return tree_runner
        if options.processes:
            return ProcessRunner(handler, collector, self._call_wrapper(OBSERVED.tracer))
        if handler.batch is not None:
            return BatchRunner(handler, collector, call_builder)
        if handler.wants == (HandlerArgument.VALUE,):
            return ValueRunner(handler, collector)
        return RecordRunner(handler, collector, call_builder)

    def _send(self, records: Sequence[NewRecord]) -> None:
        """Send outputs, and return when all are stored."""
        if self._destination is not None and self.handler.to is not None:
            name = self.handler.to.name
            results = [record for record in records if record.topic == name]
            if results:
                send_to(self._destination, results)
            records = [record for record in records if record.topic != name]
            if not records:
                return
        if self._stream is None:
            raise HandlerError(
                f"{self.handler.name} sends to topic {records[0].topic!r}, and the app has no stream: create it with "
                "one, such as App('log:./data', group=...)"
            )
        deliver(self._stream, records)

    def _provide(self) -> Callable[[Topic[Any]], None]:
        return (lambda topic: None) if self._stream is None else provider_of(self._stream)

    def _call_wrapper(self, tracer: Tracer | None) -> CallWrapper | None:
        """Wrap calls of another process in the middlewares, and those in the tracer."""
        handler = self.handler
        around = middleware_wrapper(handler, self.group) if handler.middlewares else None
        if tracer is None:
            return around
        outer = tracing_wrapper(handler, self.group, self.options, tracer)
        if around is None:
            return outer
        return lambda call, task, indexes: outer(functools.partial(around, call), task, indexes)

    @property
    def _is_root(self) -> bool:
        """Whether records may emit tasks: the app has stages, and the handler takes a context to reach them."""
        return (
            self._stages is not None
            and HandlerArgument.CONTEXT in self.handler.wants
            and self.handler.batch is None
            and not self.handler.is_async
            and self.options.guarantee is not Guarantee.AT_MOST_ONCE
        )

    def _tree_ended(self, task: Task, index: int, error: BaseException | None) -> None:
        assert self._loop is not None
        self._loop.tree_ended(task, index, error)
