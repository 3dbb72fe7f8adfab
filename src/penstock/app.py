"""`App`: topics and handlers declared in one place, run together."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.abc import CheckpointStore, Clock, DeadLetters, Streams
from penstock.consuming.handlers import Handler, check_topic, handler_of
from penstock.consuming.handling import HandlerConsumer
from penstock.consuming.health import Health
from penstock.consuming.options import ConsumerOptions, options_from, retry_of
from penstock.consuming.retry import Retry
from penstock.consuming.shared_handling import SharedConsumer
from penstock.consuming.snapshots import Snapshots
from penstock.consuming.stages import Stage, Stages, stage_of
from penstock.errors import ConfigError, GroupError, HandlerError
from penstock.model import Guarantee, Order
from penstock.model.clock import SystemClock
from penstock.serde import Topic
from penstock.streams.connecting import open_streams
from penstock.streams.options import Options
from penstock.streams.url import parse_url

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

_LOOK_S: Final = 0.1
_STAGES_STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Declared:
    """A handler and everything that was said about it."""

    handler: Handler
    group: str
    options: ConsumerOptions
    checkpoints: str | CheckpointStore | None
    dead_letters: str | DeadLetters | None
    snapshots: Snapshots | None


class App:
    """Handlers on topics of a system of streams, in a group.

    ```python
    app = App("log:./data", group="billing")

    @app.handle("orders", order="key", workers=8)
    def bill(order: Order) -> None: ...

    app.run()
    ```
    """

    def __init__(
        self,
        streams: str | Streams,
        *,
        group: str,
        checkpoints: str | CheckpointStore | None = None,
        clock: Clock | None = None,
        metrics: str | None = None,
        **connection: Any,
    ) -> None:
        """`streams` is a URL, or what `connect` gave; `connection` are options of `connect`, for a URL.

        `metrics` is an address, HOST:PORT, at which metrics for Prometheus are served while it runs.
        """
        if not isinstance(group, str) or not group:
            raise GroupError("an app needs a group: the name under which the progress of its handlers is kept")
        if isinstance(streams, str):
            parse_url(streams)
            _check_names(connection)
        elif not isinstance(streams, Streams):
            raise ConfigError(f"{streams!r} is no stream: give a URL, such as 'log:./data', or what `connect` gave")
        elif connection:
            raise ConfigError(
                f"{', '.join(connection)}: options of the connection go to `connect`, which has been called"
            )
        self._url = streams if isinstance(streams, str) else streams.url
        self._given = None if isinstance(streams, str) else streams
        self._connection = connection
        self.group = group
        self._checkpoints = checkpoints
        self._clock = clock
        self._metrics = metrics
        self._declared: list[Declared] = []
        self._stages: dict[str, Stage] = {}
        self._consumers: list[HandlerConsumer | SharedConsumer] = []
        self._stopping = threading.Event()
        self._running = False

    def handle(
        self,
        topic: str | Topic[Any],
        *,
        to: str | Topic[Any] | None = None,
        guarantee: str | Guarantee = Guarantee.AT_LEAST_ONCE,
        order: str | Order = Order.PARTITION,
        workers: int = 1,
        retry: Retry | int | None = None,
        dead_letters: str | DeadLetters | bool | None = True,
        batch: int | None = None,
        group: str | None = None,
        checkpoints: str | CheckpointStore | None = None,
        version: str | None = None,
        snapshot: Callable[[int], Any] | None = None,
        restore: Callable[[int, Any], None] | None = None,
        **options: Any,
    ) -> Callable[[Function], Function]:
        """Declare the handler of a topic. Returning means done, raising means to try again, `Reject` not to.

        `to` is the topic for what the handler returns. `dead_letters` is a topic, "sqlite:./letters.db",
        "file:./letters.jsonl", "postgresql://..." or an object of yours; by default the topic `TOPIC.dlq`; False: a
        record that cannot be handled stops the app. `batch` has the handler called with lists of up to so many values.
        `snapshot(partition)` gives the state that the handler keeps itself, and `restore(partition, state)` takes it
        back when the partition is begun: it is saved together with the pointers. `group` and `checkpoints` are those of
        the app unless given. All other options are those of `ConsumerOptions`.
        """
        check_topic(topic)
        if (snapshot is None) != (restore is None):
            raise ConfigError("snapshot and restore go together: what was saved must be taken back")
        snapshots = None if snapshot is None or restore is None else Snapshots(snapshot, restore)
        settings = options_from(guarantee=guarantee, order=order, workers=workers, retry=retry, **options)

        def declare(function: Function) -> Function:
            handler = handler_of(function, topic, to=to, batch=batch, version=version)
            self._declare(handler, group or self.group, settings, checkpoints, dead_letters, snapshots)
            return function

        return declare

    def _declare(
        self,
        handler: Handler,
        group: str,
        options: ConsumerOptions,
        checkpoints: str | CheckpointStore | None,
        dead_letters: str | DeadLetters | bool | None,
        snapshots: Snapshots | None,
    ) -> None:
        if self._running:
            raise HandlerError(f"{handler.name}: the app is running: declare its handlers before `run`")
        for other in self._declared:
            if other.handler.topic.name == handler.topic.name and other.group == group:
                raise HandlerError(
                    f"{handler.name} and {other.handler.name} both handle topic {handler.topic.name!r} in group "
                    f"{group!r}: each would get a part of the records. Give one of them a group of its own: group=..."
                )
        if dead_letters is True:
            dead_letters = f"{handler.topic.name}.dlq"
        if dead_letters == handler.topic.name:
            raise ConfigError(
                f"{handler.name}: its dead letters would go to {dead_letters!r}, which it handles itself, and come "
                f"back for ever: give them a place of their own, such as {dead_letters}.dlq"
            )
        declared = Declared(
            handler,
            group,
            options,
            checkpoints if checkpoints is not None else self._checkpoints,
            None if dead_letters is False or dead_letters is None else dead_letters,
            snapshots,
        )
        self._declared.append(declared)

    def stage(self, name: str, *, workers: int = 1, retry: Retry | int | None = None) -> Callable[[Function], Function]:
        """Declare a stage: a function for tasks that handlers, and other stages, give it with `ctx.emit(name, value)`.

        A record that forked into tasks is finished when all of them, and all that they led to, have ended. A task that
        fails is tried again as `retry` says (3 times unless given); when it fails for good, its record does.
        """
        policy = retry_of(retry) or Retry(3)

        def declare(function: Function) -> Function:
            if name in self._stages:
                raise HandlerError(f"there is a stage {name!r} already: {self._stages[name].function!r}")
            self._stages[name] = stage_of(name, function, workers, policy)
            return function

        return declare

    def run(self, *, metrics: str | None = None) -> None:
        """Run all handlers until SIGTERM, Ctrl-C, or `stop`; or until all have come to their `end`.

        Then reading stops, handlers finish what they have in hand, and it is saved. Raises what made it impossible for
        one of them to go on; the others are stopped first, too. A second Ctrl-C raises KeyboardInterrupt at once.

        `metrics` is an address, HOST:PORT, at which metrics for Prometheus are served meanwhile.
        """
        with self._begun(metrics):
            self._run()

    def _run(self) -> None:
        with self._opened() as streams, self._signals():
            topics = [declared.handler.topic for declared in self._declared]
            stages = None
            if self._stages or len(topics) > 1:  # else there is nothing that a record could fork into
                stages = Stages(self._stages.values(), topics, streams, self._clock or SystemClock())
            self._consumers = []
            try:
                for declared in self._declared:
                    self._consumers.append(self._consumer(declared, streams, stages))
            except BaseException:
                for consumer in self._consumers:
                    consumer.abandon()
                raise
            if stages is not None:
                stages.start()
            patience_s = _STAGES_STOP_S
            try:
                for consumer in self._consumers:
                    consumer.start()
                self._wait()
            except KeyboardInterrupt:
                patience_s = 0.0
                raise
            finally:
                if stages is not None:
                    stages.stop(patience_s)

    def start(self, *, metrics: str | None = None) -> threading.Thread:
        """`run`, in a thread of its own, without hearing signals. What ends it badly is told by `threading.excepthook`,
        and seen in `health`; an address for metrics that cannot be had is raised here."""
        begun = self._begun(metrics)

        def run() -> None:
            with begun:
                self._run()

        thread = threading.Thread(target=run, name=f"penstock-app-{self.group}", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Have `run` return, when handlers are done with what they have in hand. From any thread."""
        self._stopping.set()

    def health(self) -> list[Health]:
        """How each handler stands: whether it gets on, not whether it is alive."""
        return [consumer.health() for consumer in self._consumers]

    @property
    def consumers(self) -> list[HandlerConsumer | SharedConsumer]:
        """Those that run, one for each handler."""
        return list(self._consumers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _consumer(
        self, declared: Declared, streams: Streams, stages: Stages | None
    ) -> HandlerConsumer | SharedConsumer:
        if declared.options.shared:
            return SharedConsumer(
                streams,
                declared.handler,
                group=declared.group,
                options=declared.options,
                checkpoints=declared.checkpoints,
                dead_letters=declared.dead_letters,
                clock=self._clock,
            )
        return HandlerConsumer(
            streams,
            declared.handler.topic,
            declared.handler,
            group=declared.group,
            options=declared.options,
            checkpoints=declared.checkpoints,
            dead_letters=declared.dead_letters,
            clock=self._clock,
            stages=stages,
            snapshots=declared.snapshots,
        )

    def _wait(self) -> None:
        waiting = list(self._consumers)
        failure: BaseException | None = None
        while waiting:
            if self._stopping.is_set() or failure is not None:
                for consumer in waiting:
                    consumer.stop()
            for consumer in list(waiting):
                try:
                    if consumer.wait(_LOOK_S / len(waiting)):
                        waiting.remove(consumer)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    waiting.remove(consumer)
                    if failure is not None:
                        logger.error("%s ended, too: %s", consumer.handler.name, error)
                    failure = failure or error
        if failure is not None:
            raise failure

    def _begun(self, metrics: str | None) -> contextlib.AbstractContextManager[object]:
        """From here on it runs, and `stop` stops it. Gives what is to be left when it has ended."""
        if not self._declared:
            raise HandlerError("the app has no handlers: declare one with @app.handle(TOPIC)")
        if self._running:
            raise ConfigError("the app is running already")
        address = metrics if metrics is not None else self._metrics
        served: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if address is not None:
            from penstock.observe.serving import serve  # only now: an app without metrics does not wait for it

            served = serve(address)
        self._running = True
        self._stopping.clear()
        return served

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Streams]:
        streams = self._given
        try:
            if streams is None:
                streams = open_streams(self._url, **self._connection)
            yield streams
        except KeyboardInterrupt:
            if self._given is None and streams is not None:  # to close them now would wait for the handlers
                threading.Thread(target=streams.close, name="penstock-close", daemon=True).start()
                streams = None
            raise
        finally:
            self._running = False
            if self._given is None and streams is not None:
                streams.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C stop the app; a second Ctrl-C does not wait."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            if self._stopping.is_set() and number == signal.SIGINT:
                raise KeyboardInterrupt
            if number == signal.SIGINT:
                logger.warning("Ctrl-C: finishing what handlers have in hand; Ctrl-C again does not wait for it")
            else:
                logger.info("%s: finishing what handlers have in hand", signal.Signals(number).name)
            self._stopping.set()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _check_names(connection: Mapping[str, Any]) -> None:
    """ConfigError for what is neither an option of the app nor one of `connect`."""
    known = [*inspect.signature(App).parameters, *(field.name for field in dataclasses.fields(Options))]
    for name in connection:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"App and connect have no option {name!r}{hint}")
