"""`App`: declare handlers of topics in one place and run them together."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import difflib
import inspect
import logging
import random
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self, TypeVar, Unpack

from penstock.abc import CheckpointStore, Clock, DeadLetters, Queue, Stream
from penstock.consuming.deadlines.call import Result
from penstock.consuming.deadlines.gather import AnswerTo, Gather, GatherOptions, gather_of
from penstock.consuming.deadlines.gather_consumer import GatherConsumer
from penstock.consuming.declaration import Declared
from penstock.consuming.destinations import Destination, as_destination, destination_name
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.handlers import Handler, Middleware, check_several, chosen_topics, handler_of
from penstock.consuming.health import Health
from penstock.consuming.options import (
    GuaranteeChoice,
    HandlerOptions,
    OrderChoice,
    PositionChoice,
    options_from,
    position,
    retry_of,
)
from penstock.consuming.pattern_consumer import PatternConsumer
from penstock.consuming.queue.queue_consumer import QueueConsumer, queue_options
from penstock.consuming.stages import Stage, Stages, stage_of
from penstock.consuming.state_server import StateServer
from penstock.consuming.workers.middlewares import check_middlewares
from penstock.consuming.workers.snapshots import Snapshots
from penstock.errors import BrokerUnavailableError, ConfigError, GroupError, GuaranteeError, HandlerError, PenstockError
from penstock.model import Guarantee, Ordering, Position
from penstock.model.clock import SystemClock
from penstock.model.observing import OBSERVED
from penstock.model.retry import Retry
from penstock.model.stop_signals import on_stop_signals
from penstock.observe.asyncapi import document
from penstock.observe.handler_runs import HandlerRuns
from penstock.queues.opening import as_queue, queue_name
from penstock.serde import Topic
from penstock.streams.connecting import check_url, open_stream
from penstock.streams.options import ConnectOptions, Options
from penstock.streams.schemes import scheme_of
from penstock.streams.topic_patterns import DEAD_LETTER_SUFFIX, TopicChoice, TopicPattern, described
from penstock.streams.url import KAFKA_SCHEMES, is_memory

logger = logging.getLogger(__name__)

AnyConsumer = HandlerConsumer | QueueConsumer | PatternConsumer[HandlerConsumer | QueueConsumer]
Function = TypeVar("Function", bound=Callable[..., Any])
Deciding = TypeVar("Deciding", bound=Callable[[Any, Result], Any])
Made = TypeVar("Made")

_LOOK_S: Final = 0.1
_STAGES_STOP_S: Final = 10.0
_AGAIN: Final = Retry(first_delay_s=0.2, max_delay_s=5.0)
_defined: list[weakref.ref[App]] = []


def defined_apps() -> list[App]:
    """The apps of this process that still exist, in order of creation."""
    return [app for each in _defined if (app := each()) is not None]


class App:
    """Handlers of topics and queues, in a consumer group.

    ```python
    app = App("log:./data", group="billing")

    @app.handle("orders", order="key", workers=8)
    def bill(order: Order) -> None: ...

    app.run()
    ```
    """

    def __init__(
        self,
        stream: str | Stream | None = None,
        *,
        group: str,
        checkpoints: str | CheckpointStore | None = None,
        clock: Clock | None = None,
        metrics: str | None = None,
        health: str | None = None,
        serve: str | None = None,
        insecure_endpoints: bool = False,
        middlewares: Sequence[Middleware] = (),
        **connection: Unpack[ConnectOptions],
    ) -> None:
        """`stream` is a URL or what `connect` returned; `connection` are options of `connect`, for a URL. An app that
        handles queues alone needs no stream.

        `metrics` and `health` are addresses, HOST:PORT, that serve `/metrics` for Prometheus, `/healthz` and `/readyz`
        while the app runs. `serve` is one that serves the state of its handlers: `GET /state/TOPIC/KEY` is the
        `ctx.state` of a key as of the last checkpoint, from the member of the group that owns it; all members need
        `serve`. They need no login, so addresses that other machines can reach are refused unless
        `insecure_endpoints` is true. `middlewares` wrap each call of every handler, the first one outermost.
        """
        if not isinstance(group, str) or not group:
            raise GroupError("an app needs a group: the name under which the progress of its handlers is saved")
        if isinstance(stream, str):
            check_url(stream)
            if is_memory(stream) or scheme_of(stream) in KAFKA_SCHEMES:
                _check_names(connection)  # other backends refuse options that they do not know when they are opened
        elif stream is not None and not isinstance(stream, Stream):
            raise ConfigError(f"{stream!r} is not a stream: pass a URL such as 'log:./data', or a `connect` result")
        elif connection:
            raise ConfigError(
                f"{', '.join(connection)}: pass options of the connection to `connect`, which was called already"
                if stream is not None
                else f"{', '.join(connection)}: the app has no stream to connect to"
            )
        if clock is not None and not hasattr(clock, "monotonic_s"):
            raise ConfigError(f"clock={clock!r} must be a penstock.abc.Clock")
        self._url = stream if isinstance(stream, str) or stream is None else stream.url
        self._given = None if isinstance(stream, str) else stream
        self._connection = connection
        self.group = group
        self._checkpoints = checkpoints
        self._clock = clock
        self._metrics = metrics
        self._health = health
        self._serve = serve
        self._state_server: StateServer | None = None
        self._insecure_endpoints = insecure_endpoints
        self._middlewares = tuple(middlewares)
        self._declared: list[Declared] = []
        self._gathers: list[Gather] = []
        self._stages: dict[str, Stage] = {}
        self._consumers: list[AnyConsumer] = []
        self._gatherers: list[GatherConsumer] = []
        self._runs: HandlerRuns | None = None
        self._stopping = threading.Event()
        self._running = False
        self._has_begun = False
        _defined.append(weakref.ref(self))

    def handle(
        self,
        topic: TopicChoice | Queue,
        *,
        to: str | Topic[Any] | Destination | None = None,
        guarantee: GuaranteeChoice = Guarantee.AT_LEAST_ONCE,
        order: OrderChoice | None = None,
        workers: int = 1,
        retry: Retry | int | None = None,
        dead_letters: str | DeadLetters | bool | None = True,
        batch: int | None = None,
        group: str | None = None,
        checkpoints: str | CheckpointStore | None = None,
        version: str | None = None,
        snapshot: Callable[[int], Any] | None = None,
        restore: Callable[[int, Any], None] | None = None,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Function], Function]:
        """Declare the handler of a topic, or of a queue: an `abc.Queue` or its URL, such as "memory:jobs". Returning
        means done, raising means retry, raising `Reject` means no retry.

        `topic` is a name or a Topic, a list of them, or a pattern: a compiled one, `re.compile(r"orders\\..*")`, or a
        `TopicPattern` that says how values are decoded. Each topic has its own consumer, so workers, limits and
        commits count for each topic. Topics that match a pattern later join in within seconds and are read from
        `start`; deleted ones drop out. A topic that another handler of the group names, or that matches a pattern
        declared before, is left to that handler.

        `order` is "partition" by default, and "none" for queues. `to` is where the handler's results go: a topic, an
        `abc.Queue` or `abc.Channel` or the URL of one, or a topic of another stream (`other.open_topic("orders")`).
        `dead_letters` is a topic, "sqlite:./letters.db", "file:./letters.jsonl", "postgresql://..." or an object of
        yours; by default the topic `TOPIC.dlq`, or the queue's own if the app has no stream; False: a record that
        cannot be handled stops the app. `batch` calls the handler with lists of at most this many values.
        `snapshot(partition)` returns the state that the handler keeps itself, and `restore(partition, state)` restores
        it when the partition is assigned: it is saved together with the checkpoint. `middlewares` wrap each call,
        inside those of the app: functions that take the context and return a context manager. `group` and `checkpoints`
        default to those of the app. All other options are those of `ConsumerOptions`.
        """
        queue, destination = as_queue(topic), as_destination(to)
        results: Any = to if destination is None else destination_name(destination)
        if destination is not None and guarantee in (Guarantee.EXACTLY_ONCE, "exactly-once"):
            raise GuaranteeError(
                f"to={results!r} is not a topic of the stream that is read, so no transaction can include both: omit "
                "guarantee"
            )
        source: Any = topic if queue is None else queue_name(queue)
        topics = chosen_topics(source)
        if queue is None and self._url is None:
            raise ConfigError(f"{described(topics)}: the app has no stream: create it with one, or handle a queue")
        if (snapshot is None) != (restore is None):
            raise ConfigError("snapshot and restore go together: pass both")
        for name, function in (("snapshot", snapshot), ("restore", restore)):
            if function is not None and not callable(function):
                raise ConfigError(f"{name}={function!r} must be a function")
        if group is not None and (not isinstance(group, str) or not group):
            raise GroupError(f"group={group!r} must be a non-empty string")
        snapshots = None if snapshot is None or restore is None else Snapshots(snapshot, restore)
        defaults: dict[str, Any] = {"order": Ordering.PARTITION if order is None else order}
        if queue is not None or options.get("shared"):
            given = {**options, "batch": batch, "snapshot": snapshot, "checkpoints": checkpoints}
            what = described(topics) if queue is None else f"queue {source!r}"
            shared = queue is None
            defaults = queue_options(what, given, order=order, guarantee=guarantee, workers=workers, is_shared=shared)
        settings = options_from(guarantee=guarantee, workers=workers, retry=retry, **{**defaults, **options})
        check_several(topics, settings, with_snapshots=snapshots is not None)
        each_topic: Sequence[str | Topic[Any]] = topics if isinstance(topics, list) else [topics.topic(topics.label)]
        if isinstance(topic, re.Pattern):  # the annotation of the handler says what its values are
            each_topic = [str(each) for each in each_topic]

        def declare(function: Function) -> Function:
            for each in each_topic:
                handler = handler_of(function, each, to=results, batch=batch, version=version)
                around = (*self._middlewares, *middlewares)
                check_middlewares(handler.name, around, is_async=handler.is_async)
                handler = replace(handler, middlewares=around)
                pattern = topics if isinstance(topics, TopicPattern) else None
                if isinstance(topic, re.Pattern):
                    pattern = TopicPattern(topic, handler.topic.type)
                self._declare(
                    Declared(
                        handler,
                        group or self.group,
                        settings,
                        checkpoints if checkpoints is not None else self._checkpoints,
                        self._letters_of(handler, dead_letters, pattern),
                        snapshots,
                        queue,
                        rejects=dead_letters is True and self._url is None,
                        destination=destination,
                        pattern=pattern,
                        has_own_letters=dead_letters is True and pattern is not None,
                    )
                )
            return function

        return declare

    def gather(
        self,
        requests: str | Topic[Any],
        answers: str | Topic[Any] | Mapping[str, str | Topic[Any]],
        *,
        to: str | Topic[Any],
        within_ms: float,
        request_id: Callable[[Any], Any],
        answer_to: AnswerTo,
        dead_letters: str | DeadLetters | bool | None = True,
        **options: Unpack[GatherOptions],
    ) -> Callable[[Deciding], Deciding]:
        """Declare what makes one verdict of each request and the answers to it, which come as records, in time.

        The function takes the request and a `Result`, as of `within`, and returns the verdict, which goes to the topic
        `to`: at once when all `expected` answers are there, or else `within_ms` after the time of the request's record,
        labelled as partial. `request_id` returns the id of a request, and `answer_to` that of the request that an
        answer is for, together with the answer's name; with a topic for each name, `answers` maps names to topics, and
        `answer_to` returns the id alone. Answers must be in the partition of their request.

        Answers that come later go to the topic `late`, with headers that say which verdict they missed. Answers that
        come before their request, and the ids of verdicts, are kept for `keep_s` seconds, at most `most` of each in a
        partition. Each request gets one verdict, also after a crash; one whose time was up meanwhile gets it at once,
        labelled as overdue. A `member` that restarts under its name continues at once; any other member takes over
        after `session_timeout_s`. `start`, `end`, `group`, `dead_letters` and `checkpoints` are those of `handle`.
        """
        if self._url is None:
            raise ConfigError(f"{requests}: the app has no stream: create it with one")
        letters = f"{requests}{DEAD_LETTER_SUFFIX}" if dead_letters is True else dead_letters or None

        def declare(judge: Deciding) -> Deciding:
            if self._running:
                raise HandlerError(f"{judge!r}: the app is running: declare it before `run`")
            given: GatherOptions = {"group": self.group, "checkpoints": self._checkpoints, **options}
            new = gather_of(
                judge, requests, answers, to=to, within_ms=within_ms, request_id=request_id, answer_to=answer_to,
                dead_letters=letters, **given,
            )  # fmt: skip
            self._check_unused(new.name, new.requests.name, new.group)
            self._gathers.append(new)
            return judge

        return declare

    def _check_unused(self, name: str, topic: str, group: str) -> None:
        """Raise HandlerError if a topic already has a handler or a gathering in this group."""
        taken = [
            (each.handler.name, each.handler.topic.name, each.group) for each in self._declared if each.queue is None
        ]
        taken += [(each.name, each.requests.name, each.group) for each in self._gathers]
        for other, its_topic, its_group in taken:
            if (its_topic, its_group) == (topic, group):
                raise HandlerError(
                    f"{name} and {other} both handle topic {topic!r} in group {group!r}: each would get a part of the "
                    "records. Give one of them its own group: group=..."
                )

    def _letters_of(
        self, handler: Handler, given: str | DeadLetters | bool | None, pattern: TopicPattern | None
    ) -> str | DeadLetters | None:
        if given is True:
            has_topic = self._url is not None and pattern is None
            return f"{handler.topic.name}{DEAD_LETTER_SUFFIX}" if has_topic else None
        return None if given is False else given

    def _declare(self, new: Declared) -> None:
        handler, queue = new.handler, new.queue
        if self._running:
            raise HandlerError(f"{handler.name}: the app is running: declare its handlers before `run`")
        for other in self._declared:
            if queue is not None and other.queue == queue:
                raise HandlerError(
                    f"{handler.name} and {other.handler.name} both handle queue {handler.topic.name!r}: each would "
                    "get a part of the records. Raise `workers` of one of them instead"
                )
        if queue is None:
            self._check_unused(handler.name, handler.topic.name, new.group)
        if self._url is None and handler.to is not None and new.destination is None:
            raise ConfigError(f"{handler.name}: to={handler.to.name!r} is a topic, and the app has no stream")
        if queue is None and new.dead_letters == handler.topic.name:
            raise ConfigError(
                f"{handler.name}: its dead letters would go to {new.dead_letters!r}, which it handles itself, and come "
                f"back for ever: choose another topic, such as {new.dead_letters}.dlq"
            )
        self._declared.append(new)

    def stage(self, name: str, *, workers: int = 1, retry: Retry | int | None = None) -> Callable[[Function], Function]:
        """Declare a stage: a function for tasks that handlers and other stages give it with `ctx.emit(name, value)`.

        A record that emitted tasks is finished when all of them, and all that they emitted, have ended. A failed task
        is retried as `retry` says (3 attempts by default); when it fails for good, so does its record.
        """
        policy = retry_of(retry) or Retry(3)

        def declare(function: Function) -> Function:
            stage = stage_of(name, function, workers, policy)
            if name in self._stages:
                raise HandlerError(f"there is already a stage {name!r}: {self._stages[name].function!r}")
            self._stages[name] = stage
            return function

        return declare

    def run(self, *, metrics: str | None = None, health: str | None = None, end: PositionChoice | None = None) -> None:
        """Run all handlers until SIGTERM, Ctrl-C or `stop`, or until all have reached their `end`.

        Then reading stops, running handlers finish, and their records are saved. Raises the error that ended a
        handler's consumer, after stopping the others. A second Ctrl-C raises KeyboardInterrupt at once. The app waits
        for an unavailable broker, now or later, and for a topic given by name; a declared Topic is created.

        The addresses `metrics` and `health`, HOST:PORT, which may be the same, serve `/metrics` for Prometheus;
        `/healthz`, which is 503 when only a restart would help; and `/readyz`, which is 503 until every handler has its
        partitions, and while one of them makes no progress.

        `end` applies to every handler without one: `app.run(end="latest")` handles the records that exist now and
        returns.
        """
        until = None if end is None else position(end, "end")
        with self._begin(metrics, health):
            self._run(until)

    def _run(self, end: Position | None = None) -> None:
        with on_stop_signals(self._on_stop_signal), self._open_stream() as stream:
            if stream is None and self._url is not None:
                return  # stopped before the broker was reached
            topics = [each.pattern or each.handler.topic for each in self._declared if each.queue is None]
            stages = None
            if self._stages or len(topics) > 1:  # otherwise records cannot emit tasks
                stages = Stages(self._stages.values(), topics, stream, self._clock or SystemClock())
            consumers = self._retry_until_stopped(lambda: self._make_consumers(stream, stages, end), _abandon)
            if consumers is None:
                return
            gatherers = self._retry_until_stopped(lambda: self._make_gatherers(stream, end), _abandon)
            if gatherers is None:
                _abandon(consumers)
                return
            self._consumers, self._gatherers = consumers, gatherers
            self._runs = None
            if OBSERVED.lineage is not None:
                ends = end is not None
                self._runs = HandlerRuns(OBSERVED.lineage, self._url or "", self._declared, consumers, ends=ends)
            if stages is not None:
                stages.start()
            patience_s = _STAGES_STOP_S
            try:
                for consumer in (*self._consumers, *self._gatherers):
                    consumer.start()
                self._wait()
            except KeyboardInterrupt:
                patience_s = 0.0
                raise
            finally:
                if self._runs is not None:
                    self._runs.close()
                if stages is not None:
                    stages.stop(patience_s)

    def _make_consumers(self, stream: Stream | None, stages: Stages | None, end: Position | None) -> list[AnyConsumer]:
        consumers: list[AnyConsumer] = []
        make_member = None if self._state_server is None else self._state_server.member_name
        try:
            for declared in self._declared:
                is_excluded = self._excluded(declared)
                if declared.options.end is None and end is not None:
                    declared = replace(declared, options=replace(declared.options, end=end))
                if declared.pattern is None or stream is None:
                    consumers.append(declared.consumer(stream, stages, self._clock, None, make_member))
                else:
                    consumers.append(declared.pattern_consumer(stream, stages, self._clock, is_excluded, make_member))
        except BaseException:
            _abandon(consumers)
            raise
        return consumers

    def _make_gatherers(self, stream: Stream | None, end: Position | None) -> list[GatherConsumer]:
        made: list[GatherConsumer] = []
        try:
            for gather in self._gathers:
                assert stream is not None
                made.append(GatherConsumer(stream, replace(gather, end=gather.end or end), self._clock))
        except BaseException:
            _abandon(made)
            raise
        return made

    def _excluded(self, declared: Declared) -> Callable[[str], bool]:
        """Whether a topic that matches is not for this handler: another one's, or its own output."""
        group = [each for each in self._declared if each.group == declared.group and each.queue is declared.queue]
        names = {each.handler.topic.name for each in group if each.pattern is None}
        names.update(str(each) for each in (declared.dead_letters, declared.handler.to) if each is not None)
        before = [each.pattern for each in group[: group.index(declared)] if each.pattern is not None]
        return lambda name: name in names or any(pattern.matches(name) for pattern in before)

    def _retry_until_stopped(self, action: Callable[[], Made], undo: Callable[[Made], object]) -> Made | None:
        """The result of an action that is retried while the broker is unavailable; None after `stop`.

        It runs in its own thread, so that signals are handled at once. A result that comes too late is undone.
        """
        chance, attempts = random.Random(), 0
        while not self._stopping.is_set():
            made: concurrent.futures.Future[Made] = concurrent.futures.Future()
            threading.Thread(target=_settle, args=(made, action), name="penstock-app-opening", daemon=True).start()
            while not made.done() and not self._stopping.is_set():
                concurrent.futures.wait([made], _LOOK_S)
            if not made.done():
                made.add_done_callback(lambda late: None if late.exception() else undo(late.result()))
                return None
            try:
                return made.result()
            except BrokerUnavailableError as error:
                if not error.retriable:
                    raise
                attempts += 1
                if attempts == 1:
                    logger.warning("%s. The app retries until it is stopped", error)
                self._stopping.wait(_AGAIN.backoff_s(attempts, chance))
        return None

    def start(self, *, metrics: str | None = None, health: str | None = None) -> threading.Thread:
        """`run` in a thread of its own, without signal handlers. An error that ends it goes to `threading.excepthook`
        and shows in `health`; an address that cannot be bound is raised here."""
        begun = self._begin(metrics, health)

        def run() -> None:
            with begun:
                self._run()

        thread = threading.Thread(target=run, name=f"penstock-app-{self.group}", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Make `run` return once running handlers have finished. Thread-safe."""
        self._stopping.set()

    def health(self) -> list[Health]:
        """Whether each handler makes progress, not merely whether it runs."""
        return [consumer.health() for consumer in (*self.consumers, *self._gatherers)]

    @property
    def started(self) -> bool:
        """Whether it was ever run."""
        return self._has_begun

    def stuck(self) -> list[str]:
        """For `/healthz`: what only a restart would fix. Calls no stream and no store: they may be unavailable."""
        running = (*self.consumers, *self._gatherers)
        return [f"{each.handler.name}: {why}" for each in running if (why := each.stuck())]

    def unready(self) -> list[str]:
        """For `/readyz`: what keeps handlers from making progress."""
        if self._stopping.is_set() or not self._running:
            return ["the app is stopping"]
        if len(self._consumers) < len(self._declared) or len(self._gatherers) < len(self._gathers):
            return ["the app is starting"]
        problems = [each.problem for each in self._consumers if isinstance(each, PatternConsumer) and each.problem]
        for consumer in (*self.consumers, *self._gatherers):
            try:
                found = [consumer.unready(), *consumer.health().problems]
            except PenstockError as error:
                found = [str(error)]
            problems += [f"{consumer.handler.name}: {problem}" for problem in found if problem]
        return problems

    def asyncapi(self, *, title: str | None = None, version: str = "1.0.0") -> dict[str, Any]:
        """An AsyncAPI 3.0 document: the topics, their types as JSON schemas, and which handlers read and write them.

        The title defaults to the group. ConfigError for a type that has no JSON schema.
        """
        handlers = [
            (each.handler if each.destination is None else replace(each.handler, to=None), each.group, each.pattern)
            for each in self._declared
            if each.queue is None
        ]
        return document(title or self.group, version, self._url or "", handlers)

    @property
    def stream(self) -> str | Stream | None:
        """The URL or stream that the app was created with; None for an app that handles queues alone."""
        return self._url if self._given is None else self._given

    @property
    def declared(self) -> Sequence[Declared]:
        """Its handlers, with their options."""
        return tuple(self._declared)

    @property
    def consumers(self) -> list[HandlerConsumer | QueueConsumer]:
        """The running consumers, one for each handler and topic."""
        found: list[HandlerConsumer | QueueConsumer] = []
        for consumer in self._consumers:
            found += consumer.consumers if isinstance(consumer, PatternConsumer) else [consumer]
        return found

    @property
    def state_url(self) -> str:
        """Where the state of its handlers is served: `http://HOST:PORT/state`. ConfigError unless it is."""
        if self._state_server is None:
            raise ConfigError("the app does not serve its state: pass serve='127.0.0.1:0' to App, and start it")
        return f"{self._state_server.url}/state"

    def _with_state(self) -> list[HandlerConsumer] | None:
        """The running consumers of topics; None while there are none yet."""
        if not self._running or len(self._consumers) < len(self._declared):
            return None
        return [each for each in self.consumers if isinstance(each, HandlerConsumer)]

    @property
    def gatherers(self) -> Sequence[GatherConsumer]:
        """The running consumers of its gatherings."""
        return tuple(self._gatherers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _wait(self) -> None:
        waiting: list[AnyConsumer | GatherConsumer] = [*self._consumers, *self._gatherers]
        failure: BaseException | None = None
        while waiting:
            if self._stopping.is_set() or failure is not None:
                for consumer in waiting:
                    consumer.stop()
            if self._runs is not None:
                self._runs.look()
            for consumer in list(waiting):
                try:
                    if consumer.wait(_LOOK_S / len(waiting)):
                        waiting.remove(consumer)
                        self._ended(consumer, None, failure)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    waiting.remove(consumer)
                    self._ended(consumer, error, failure)
                    if failure is not None:
                        logger.error("%s ended, too: %s", consumer.handler.name, error)
                    failure = failure or error
        if failure is not None:
            raise failure

    def _ended(
        self, consumer: AnyConsumer | GatherConsumer, error: BaseException | None, failure: BaseException | None
    ) -> None:
        if self._runs is not None and not isinstance(consumer, GatherConsumer):
            self._runs.ended(consumer, error, stopped=self._stopping.is_set() or failure is not None)

    def _begin(self, metrics: str | None, health: str | None) -> contextlib.AbstractContextManager[object]:
        """Mark the app as running. Returns the context to leave at its end."""
        if not self._declared and not self._gathers:
            raise HandlerError("the app has no handlers: declare one with @app.handle(TOPIC)")
        if self._running:
            raise ConfigError("the app is already running")
        asked = (metrics if metrics is not None else self._metrics, health if health is not None else self._health)
        addresses = dict.fromkeys(address for address in asked if address is not None)
        with contextlib.ExitStack() as stack:
            if addresses:
                from penstock.observe.metrics.serving import serve

                probes = {"/healthz": self.stuck, "/readyz": self.unready}
                for address in addresses:
                    stack.enter_context(serve(address, probes=probes, insecure=self._insecure_endpoints))
            if self._serve is not None:
                if not any(each.may_keep_state for each in self._declared):
                    raise ConfigError(
                        f"serve={self._serve!r}: no handler of the app can have state by key: ctx.state needs a topic, "
                        "order='partition' or 'key', and no processes"
                    )
                server = StateServer(self._serve, self._with_state, insecure=self._insecure_endpoints)
                stack.callback(self._end_serving)
                self._state_server = stack.enter_context(server)
            self._running = self._has_begun = True
            self._stopping.clear()
            self._consumers, self._gatherers = [], []
            return stack.pop_all()

    def _end_serving(self) -> None:
        self._state_server = None

    @contextlib.contextmanager
    def _open_stream(self) -> Iterator[Stream | None]:
        """Open the stream; None when the app was stopped before it could be reached."""
        stream = self._given
        try:
            url = self._url
            if stream is None and url is not None:
                options = self._connection
                if self._gathers and scheme_of(url) in KAFKA_SCHEMES:  # a verdict must not wait for another
                    options = {"linger_ms": 0.0, **options}
                stream = self._retry_until_stopped(lambda: open_stream(url, **options), lambda late: late.close())
            yield stream
        except KeyboardInterrupt:
            if self._given is None and stream is not None:  # closing it here would wait for the handlers
                threading.Thread(target=stream.close, name="penstock-close", daemon=True).start()
                stream = None
            raise
        finally:
            self._running = False
            if self._given is None and stream is not None:
                stream.close()

    def _on_stop_signal(self, number: signal.Signals) -> None:
        """Stop; a second Ctrl-C does not wait."""
        if number is not signal.SIGINT:
            logger.info("%s: waiting for running handlers", number.name)
        elif self._stopping.is_set():
            raise KeyboardInterrupt
        else:
            logger.warning("Ctrl-C: waiting for running handlers; press Ctrl-C again to quit at once")
        self._stopping.set()


def _settle(made: concurrent.futures.Future[Made], action: Callable[[], Made]) -> None:
    try:
        made.set_result(action())
    except BaseException as error:
        made.set_exception(error)


def _abandon(consumers: Sequence[AnyConsumer | GatherConsumer]) -> None:
    for consumer in consumers:
        consumer.abandon()


def _check_names(connection: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option of neither the app nor `connect`."""
    known = [*inspect.signature(App).parameters, *(field.name for field in dataclasses.fields(Options))]
    for name in connection:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"App and connect have no option {name!r}{hint}")
