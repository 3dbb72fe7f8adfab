"""`Gateway`: carry records from a channel, a queue or a topic to a topic, a queue or a channel.

From a topic or a queue, it is an `App` with one handler. A channel keeps nothing, so its records go into an inbox
first, an embedded log on the disk of this machine, and an `App` carries them on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from penstock.abc import Acknowledging, CheckpointStore, Clock, DeadLetters, Feature
from penstock.app import App
from penstock.channels import open_channel
from penstock.channels.inbox import Inbox
from penstock.consuming.destinations import Destination, destination_name, open_destination
from penstock.consuming.options import GuaranteeChoice, OrderChoice, PositionChoice
from penstock.errors import ConfigError, HandlerError, PenstockError, UrlError
from penstock.model import Guarantee, NewRecord, Record, check_topic_name
from penstock.model.record import RECORD_ID, own_id
from penstock.model.retry import Retry
from penstock.queues.opening import queue_name
from penstock.streams import connect
from penstock.streams.schemes import CHANNELS, QUEUES, STREAMS, has_scheme, listed_schemes, scheme_of
from penstock.streams.url import without_password

logger = logging.getLogger(__name__)

Map = Callable[[Record], Any]
"""Returns what to send for a record: a value (bytes, text, a dict as JSON), a NewRecord, a list of those, or None."""

DEFAULT_INBOX: Final = "log:./penstock-inbox"
_TRIM_EVERY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a gateway."""

    kind: Literal["topic", "queue", "channel"]
    url: str
    name: str
    """The topic, or the last part of the URL's path; "" if there is none."""

    @property
    def shown(self) -> str:
        """For messages: without the password."""
        shown = without_password(self.url)
        return f"{shown}#{self.name}" if self.kind == "topic" else shown


def endpoint_of(text: str) -> Endpoint:
    """From `URL#TOPIC` of a stream, or the URL of a queue or channel. UrlError for anything else."""
    url, mark, topic = text.partition("#")
    scheme = scheme_of(url)
    if topic:
        check_topic_name(topic)
    if has_scheme(STREAMS, scheme) and (topic or not has_scheme(QUEUES, scheme)):
        return Endpoint("topic", url, topic)
    kind: Literal["queue", "channel"] | None = None
    if has_scheme(QUEUES, scheme):
        kind = "queue"
    elif has_scheme(CHANNELS, scheme):
        kind = "channel"
    if kind is None:
        raise UrlError(
            f"{without_password(text)!r} is not the URL of a stream, queue or channel; installed: streams "
            f"{listed_schemes(STREAMS)}; queues {listed_schemes(QUEUES)}; channels {listed_schemes(CHANNELS)}"
        )
    if mark:
        raise UrlError(f"{without_password(text)!r} names a topic, but {scheme}: is a {kind}: omit the #")
    return Endpoint(kind, url, queue_name(url) if urlsplit(url).path.strip("/") else "")


@dataclass(frozen=True, slots=True)
class GatewayProgress:
    """What a gateway has done since it was started."""

    delivered: int
    """Records of the source that were mapped and stored at the sink, or dropped by the map."""
    retried: int
    dead_letters: int
    waiting: int | None
    """Records of the source, or of the inbox, that are not delivered; None where it is unknown, as in a queue."""
    received: int | None = None
    """From a channel: records in the inbox."""
    refused: int | None = None
    lost: int | None = None


class Gateway:
    """Carry records from `source` to `sink` until stopped.

    Each is `URL#TOPIC` of a stream, or the URL of a queue or a channel. A sink without a topic has the topic of the
    source. Keys, headers and times are kept as far as the sink has them.
    """

    def __init__(
        self,
        source: str,
        sink: str,
        *,
        map: Map | None = None,
        group: str = "gateway",
        guarantee: GuaranteeChoice = Guarantee.AT_LEAST_ONCE,
        order: OrderChoice | None = None,
        workers: int = 1,
        retry: Retry | int | None = None,
        dead_letters: str | DeadLetters | bool = True,
        checkpoints: str | CheckpointStore | None = None,
        start: PositionChoice | None = None,
        partitions: int | None = None,
        inbox: str = DEFAULT_INBOX,
        metrics: str | None = None,
        health: str | None = None,
        insecure_endpoints: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """`partitions` are those of a sink topic that does not exist yet. `inbox` is the embedded log for the records
        of a channel. All others are options of `App` and `App.handle`."""
        self.source, self.sink = endpoint_of(source), endpoint_of(sink)
        if self.source.kind == "topic" and not self.source.name:
            raise UrlError(f"{without_password(source)!r} has no topic: name it, {without_password(source)}#TOPIC")
        if self.sink.kind == "topic" and not self.sink.name:
            if not self.source.name:
                shown = without_password(sink)
                raise UrlError(f"{shown!r} has no topic, and {self.source.shown} no name for one: write {shown}#TOPIC")
            self.sink = dataclasses.replace(self.sink, name=self.source.name)
        if partitions is not None and self.sink.kind != "topic":
            raise ConfigError(f"partitions={partitions}: {self.sink.shown} is not a topic")
        if self.source.kind == "channel" and scheme_of(inbox) != "log":
            raise ConfigError(f"inbox={inbox!r} must be an embedded log, such as {DEFAULT_INBOX}")
        if self.source.kind != "topic" and start is not None:
            raise ConfigError(f"start={start!r}: {self.source.shown} is not a topic, so it has no positions")
        if self.source.kind == "queue" and checkpoints is not None:
            raise ConfigError(f"{self.source.shown} is a queue, which keeps its own progress: omit checkpoints")
        if self.source == self.sink:
            raise ConfigError(f"{self.sink.shown} is both source and sink: its records would go round for ever")
        if map is not None and not callable(map):
            raise ConfigError(f"map={map!r} must be a function that takes a record")
        self._map = map
        self._partitions = partitions
        self._inbox_url = inbox
        self._inbox: Inbox | None = None
        self._stopping = threading.Event()
        url = {"topic": self.source.url, "queue": None, "channel": inbox}[self.source.kind]
        self._app = App(
            url, group=group, checkpoints=checkpoints, clock=clock, metrics=metrics, health=health,
            insecure_endpoints=insecure_endpoints,
        )  # fmt: skip
        self._options: dict[str, Any] = {
            "guarantee": guarantee,
            "order": order,
            "workers": workers,
            "retry": retry,
            "dead_letters": dead_letters,
        }
        if start is not None:
            self._options["start"] = start
        if self.source.kind == "channel":
            self._options["on_expired"] = "earliest"  # only what was delivered is ever deleted from the inbox

    def run(self, *, end: PositionChoice | None = None) -> None:
        """Carry records until SIGTERM, Ctrl-C or `stop`; with `end`, up to that position of a source topic."""
        if end is not None and self.source.kind != "topic":
            raise ConfigError(f"end={end!r}: {self.source.shown} is not a topic, so it has no end")
        with contextlib.ExitStack() as closing:
            self._declare(closing)
            if self.source.kind == "channel":
                closing.enter_context(self._listening())
            self._app.run(end=end)
        if self._inbox is not None and self._inbox.error is not None:
            raise self._inbox.error

    def stop(self) -> None:
        """Make `run` return once records in flight are delivered. Thread-safe."""
        self._app.stop()

    def progress(self) -> GatewayProgress:
        consumers = self._app.consumers
        counts = [consumer.counts for consumer in consumers]
        waiting: int | None = None
        with contextlib.suppress(PenstockError):  # the stream is away
            lags = [consumer.health().lag for consumer in consumers]
            waiting = None if not lags or None in lags else sum(lag or 0 for lag in lags)
        inbox = self._inbox
        return GatewayProgress(
            delivered=sum(each.succeeded for each in counts),
            retried=sum(each.retried for each in counts),
            dead_letters=sum(each.exhausted for each in counts),
            waiting=waiting,
            received=None if inbox is None else inbox.counts.stored,
            refused=None if inbox is None or not isinstance(inbox.channel, Acknowledging) else inbox.counts.refused,
            lost=None if inbox is None or Feature.LOSS_COUNT not in inbox.channel.features else inbox.lost,
        )

    def _declare(self, closing: contextlib.ExitStack) -> None:
        if self.sink.kind == "topic" and self.sink.url == self.source.url:
            to: str | Destination = self.sink.name  # in one stream, so that exactly-once is possible
        else:
            to = self._open_sink(closing)
        given, convert = self._map, _Converter(destination_name(to) if not isinstance(to, str) else to)

        identify = self._identifier(to)

        def forward(record: Record) -> list[NewRecord]:
            found = convert(record if given is None else given(record), record)
            return found if identify is None else identify(found, record)

        source = self.source.url if self.source.kind == "queue" else self.source.name
        if self.source.kind == "channel":
            self._inbox = Inbox(open_channel(self.source.url), self._inbox_url)
            source = self._inbox.topic
        self._app.handle(source, to=to, **self._options)(forward)

    def _identifier(self, to: str | Destination) -> Callable[[list[NewRecord], Record], list[NewRecord]] | None:
        """For a channel with answers, whose senders repeat what was not answered: gives records an id that is the same
        each time, so that receivers can drop repeats. Records of a queue have no place that could be their id."""
        if self.sink.kind != "channel" or self.source.kind == "queue" or isinstance(to, str):
            return None
        if not {Feature.ANSWERS, Feature.HEADERS} <= to.features:
            return None
        of_source = hashlib.sha256(self.source.shown.encode()).hexdigest()[:8]

        def identify(found: list[NewRecord], record: Record) -> list[NewRecord]:
            if len(found) == 1 and own_id(found[0].headers):
                return found
            place = f"{of_source}-{record.topic}-{record.partition}-{record.pointer}-{record.timestamp_ms or 0}"
            return [_with_id(new, f"{place}-{index}".encode()) for index, new in enumerate(found)]

        return identify

    def _open_sink(self, closing: contextlib.ExitStack) -> Destination:
        if self.sink.kind != "topic":
            destination = open_destination(self.sink.url)
            closing.callback(destination.close)
            return destination
        stream = closing.enter_context(connect(self.sink.url))
        stream.admin().provide(self.sink.name, self._partitions, {})
        return stream.open_topic(self.sink.name)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Fill the inbox, and remove from it what was delivered."""
        inbox = self._inbox
        assert inbox is not None
        inbox.start(on_failure=self._app.stop)
        trimmer = threading.Thread(target=self._trim, args=(inbox,), name="penstock-gateway-inbox", daemon=True)
        trimmer.start()
        try:
            yield
        finally:
            self._stopping.set()
            trimmer.join()
            inbox.stop()

    def _trim(self, inbox: Inbox) -> None:
        """Remove what was delivered, now and then. What was finished at the last look has been saved since."""
        finished: dict[int, int] = {}
        while not self._stopping.wait(_TRIM_EVERY_S):
            try:
                inbox.delete_before(finished)
                partitions = [each for consumer in self._app.consumers for each in consumer.health().partitions]
                finished = {each.partition: each.start for each in partitions}
            except PenstockError as error:
                logger.warning("delivered records stay in the inbox %s for now: %s", self._inbox_url, error)


def _with_id(record: NewRecord, record_id: bytes) -> NewRecord:
    others = (header for header in record.headers if header[0] != RECORD_ID)
    return dataclasses.replace(record, headers=(*others, (RECORD_ID, record_id)))


class _Converter:
    """From what a map returns to records for the sink."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __call__(self, result: object, record: Record) -> list[NewRecord]:
        if result is None:
            return []
        if isinstance(result, list | tuple):
            return [new for each in result for new in self(each, record)]
        if isinstance(result, NewRecord):
            return [dataclasses.replace(result, topic=self._topic)]
        if isinstance(result, Record):
            return [NewRecord(self._topic, result.value, result.key, result.headers, result.timestamp_ms)]
        if isinstance(result, dict):
            result = msgspec.json.encode(result)
        if isinstance(result, str):
            result = result.encode()
        if not isinstance(result, bytes):
            raise HandlerError(
                f"the map returned {type(result).__name__}: return bytes, text, a dict, a Record, a NewRecord, a list "
                "of those, or None to drop the record"
            )
        return [NewRecord(self._topic, result, record.key, record.headers, record.timestamp_ms)]
