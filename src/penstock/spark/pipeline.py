"""`Pipeline`: streams in, plain DataFrame code between, streams, tables and folders out, run as one."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession

from penstock.consuming.dead_letters import open_dead_letters
from penstock.errors import ConfigError, GuaranteeError, PipelineError
from penstock.model import Guarantee, LetterFilter
from penstock.serde import Topic
from penstock.spark import realtime, triggers
from penstock.spark.checkpoint_folder import check_name, default_checkpoints
from penstock.spark.decoding import Decoder
from penstock.spark.door import SideOutput
from penstock.spark.folders import StateFolder
from penstock.spark.late import OnTimeGate
from penstock.spark.packaging import ship
from penstock.spark.plans import mode_of, require_stream
from penstock.spark.progress import ProgressBook, QueryProgress
from penstock.spark.queries import PlannedQuery
from penstock.spark.reading import read_stream, read_table
from penstock.spark.realtime_reading import decoded_in_jvm, undecodable
from penstock.spark.restart import Restart
from penstock.spark.run_settings import ENGINES, Engine, current_run
from penstock.spark.running import PipelineRun, run_until_signal
from penstock.spark.sessions import session
from penstock.spark.sink import TopicTarget, target_of
from penstock.spark.sink.topic_delivery import topics_for
from penstock.spark.targets import OutputMode, Target
from penstock.spark.triggers import RealTime, Trigger
from penstock.spark.versions import checkpoint_name, current_topic, version_to_run, versioned
from penstock.spark.worker_environment import settle_functions
from penstock.streams import Connection, connect
from penstock.streams.options import ConnectOptions
from penstock.streams.url import without_password
from penstock.streams.url_settings import client_with

DRAIN_S: Final = 30.0

_defined: list[weakref.ref[Pipeline]] = []
_starts: list[str] = []


def defined_pipelines() -> list[Pipeline]:
    """The pipelines that this program has made and not thrown away, in their order."""
    return [pipeline for each in _defined if (pipeline := each()) is not None]


def started_pipelines() -> Sequence[str]:
    """The names of all that were started in this process, in their order, also of those thrown away since."""
    return tuple(_starts)


class Pipeline:
    """A named set of streaming queries with one URL, one checkpoint folder and one life.

    `url` is where topics are read and written by default. `checkpoints` is the folder that keeps what survives a
    restart; by default it is beside the records of an embedded log, else `./pipelines`. On a cluster it must be one
    that driver and executors reach. `engine` chooses how streams are read ("native": Spark's Kafka connector, "python":
    ours, "auto": the faster one that is there). `client` are options of `penstock.connect`.

    Nothing runs before `run` or `start`; mistakes that can be seen before are refused where they are made.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        checkpoints: str | None = None,
        engine: Engine = "auto",
        restart: Restart | None = None,
        spark: SparkSession | None = None,
        client: ConnectOptions | None = None,
    ) -> None:
        check_name(name, "the name of a pipeline")
        if engine not in ENGINES:
            raise ConfigError(f"pipeline {name!r}: engine={engine!r} is not allowed: use {', '.join(ENGINES)}")
        settings = current_run()
        self.name = name
        self.url = without_password(url)
        """Fit to be shown; what is left out of it is in `client`."""
        self._settings = settings
        self.engine: Engine = settings.engine or engine
        self._checkpoints = checkpoints if checkpoints is not None else default_checkpoints(url)
        self._restart = restart or Restart()
        self._spark = spark
        self._shipped = False
        self._client = client_with(url, client)
        self._connection: Connection | None = None
        self._planned: dict[str, PlannedQuery] = {}
        self._gates: list[tuple[OnTimeGate, Target]] = []
        self._taken: set[int] = set()
        self._letters: dict[str, str] = {}
        self._outputs: dict[str, Target] = {}
        self._book = ProgressBook(name)
        self._run: PipelineRun | None = None
        _defined.append(weakref.ref(self))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {self.url!r})"

    @property
    def spark(self) -> SparkSession:
        """The session; it is made, or found, when it is first needed."""
        if self._spark is None:
            self._spark = session(f"penstock {self.name}")
        if not self._shipped:  # before the first function is made: it takes along what was there by then
            settle_functions(self._spark)
            ship(self._spark, self._settings.program)
            self._shipped = True
        return self._spark

    @property
    def connection(self) -> Connection:
        """The connection to the stream, which also keeps the broker of an embedded log alive."""
        if self._connection is None:
            self._connection = connect(self.url, **self._client)
        return self._connection

    @property
    def client(self) -> ConnectOptions:
        """Options of the connection to the stream."""
        return self._client

    @functools.cached_property
    def version(self) -> str | None:
        """Which version of the pipeline this is: as whoever runs it says, else the current one. None is the first."""
        return version_to_run(self.connection, self.name, self._settings)

    @property
    def label(self) -> str:
        """What people see: the name, and the version where it is not the first."""
        return checkpoint_name(self.name, self.version)

    @property
    def folder(self) -> StateFolder:
        """Where the pipeline keeps what survives a restart."""
        return StateFolder(self._checkpoints, self._spark).below(self.label)

    @property
    def queries(self) -> Sequence[PlannedQuery]:
        return tuple(self._planned.values())

    @property
    def book(self) -> ProgressBook:
        return self._book

    @property
    def started(self) -> bool:
        """Whether it runs, or has run, in this process."""
        return self._run is not None

    def read(
        self,
        topic: Topic[Any] | str,
        *,
        start: str | Mapping[int, int] | None = None,
        max_records_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        on_expired: str = "fail",
        dead_letters: str | None = None,
        engine: Engine | None = None,
        real_time: bool = False,
    ) -> DataFrame:
        """A topic as a streaming DataFrame.

        A typed topic has a column for each field of its type, and behind them what is known about the record: `key`,
        `headers`, `topic`, `partition`, `pointer`, `timestamp`, `timestamp_type` (called `record_NAME` where the type
        has a field of that name). What cannot be decoded goes to the dead letters, by default `TOPIC.dlq`, with its
        bytes and pointer. A topic by its name has these columns and `value`.

        `start` (earliest, latest, a time, or pointers by partition) counts when there is no checkpoint yet; the default
        is earliest. A topic that an earlier `write` of this pipeline goes to is created here if need be; a run `once`
        processes it when that query is done. With `real_time` no Python has a part in it, as `RealTime` wants it:
        Spark's Kafka connector reads, Spark itself takes JSON apart, and a query beside finds what is for the dead
        letters. `on_expired` says what happens when records are gone before they were
        read: fail, earliest, latest or a time.
        """
        decoder = self._decoder(topic, dead_letters)
        frame = read_stream(
            self.spark,
            self.url,
            self._topic_to_read(topic),
            engine="native" if real_time else engine or self.engine,
            start=current_run().start or (start if start is not None else "earliest"),
            max_records_per_batch=max_records_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            on_expired=on_expired,
            decoder=None if real_time else decoder,
            client=self._client,
        )
        if not real_time or decoder is None:
            return frame
        self.write(undecodable(frame, decoder), _count_rows, name=f"{self._name_of(topic)}.undecodable")
        return decoded_in_jvm(frame, decoder)

    def table(self, topic: Topic[Any] | str, *, dead_letters: str | None = None) -> DataFrame:
        """A topic as a table: the last record of each key, and none for keys whose last record has no value.

        Joined to a stream it is fresh in every batch, without a restart. It is sent to each batch as a whole: for
        tables of millions of rows, read their changes as a stream and keep them in state.
        """
        name = self._topic_to_read(topic)
        return read_table(self.spark, self.url, name, decoder=self._decoder(topic, dead_letters), client=self._client)

    def on_time(
        self,
        frame: DataFrame,
        column: str,
        *,
        grace: str,
        window: str | None = None,
        slide: str | None = None,
        gap: str | None = None,
        offset: str | None = None,
        late: str | Topic[Any] | Target | None = None,
    ) -> DataFrame:
        """The rows whose windows are still open, with `column` as event time and `grace` as the delay of the watermark.

        `window` (with `slide` for hopping ones, `offset` for shifted ones) or `gap` (for sessions) is that of the
        aggregation that follows. With `late`, rows that come when all their windows are closed go there, once each;
        without it Spark drops them, and they are counted only.
        """
        require_stream(frame, f"on_time in pipeline {self.name!r}")
        if late is None:
            return frame.withWatermark(column, grace)
        gate = OnTimeGate(
            name=f"{self.name}_{len(self._gates)}",
            column=column,
            window=window,
            slide=slide,
            gap=gap,
            offset=offset,
            grace=grace,
            side=self.folder.below("side").path,
        )
        target = versioned(target_of(late, self.url, client=self._client), self.version)
        gated = gate.apply(frame)
        target.check(frame.schema, "append")
        self._gates.append((gate, target))
        return gated

    def write(
        self,
        frame: DataFrame,
        *to: str | Topic[Any] | Target | Callable[[DataFrame, int], object],
        name: str | None = None,
        key: str | Sequence[str] | Column | None = None,
        guarantee: Guarantee | str = Guarantee.EXACTLY_ONCE,
        idempotency_key: str | None = None,
        compact: bool = False,
        partitions: int | None = None,
        mode: OutputMode | None = None,
        trigger: Trigger = None,
        restart: Restart | None = None,
    ) -> None:
        """Send the rows of a frame to one or several places, as one query.

        A place is the name of a topic, a `Topic`, a target such as `SqlTable` and `Folder`, or a function of a batch
        and its number. `key`, `guarantee`, `idempotency_key`, `compact` and `partitions` are about the topics among
        them. `mode` is append where results are final, update where they change; by default whichever the frame allows,
        in this order. `name` names the query and its checkpoint; by default it is that of the first place.
        """
        if not to:
            raise ConfigError(f"pipeline {self.name!r}: write needs a place to write to, such as the name of a topic")
        targets = [
            target_of(
                each,
                self.url,
                key=key,
                guarantee=guarantee,
                idempotency_key=idempotency_key,
                compact=compact,
                partitions=partitions,
                client=self._client,
            )
            for each in to
        ]
        label = name if name is not None else _name_from(targets[0].label)
        what = f"query {label!r} of pipeline {self.name!r}"
        check_name(label, "the name of a query")
        if label in self._planned:
            raise ConfigError(f"{what} is there already: give this one a name of its own, name='...'")
        if self.started:
            raise ConfigError(f"{what}: the pipeline runs already; write before it is started")
        require_stream(frame, what)
        triggers.check(trigger, what)
        versions = [versioned(target, self.version) for target in targets]
        in_real_time = None
        if isinstance(trigger, RealTime) and not current_run().once:
            in_real_time = self._real_time(frame, versions, trigger, what)
        chosen = mode_of(frame, "update" if in_real_time is not None else mode, what)
        for target in targets:
            target.check(frame.schema, chosen)
        for target, version in zip(targets, versions, strict=True):
            if isinstance(target, TopicTarget) and target.name is not None:
                self._outputs[target.name] = version
        self._planned[label] = PlannedQuery(
            name=label,
            frame=frame,
            targets=versions,
            sides=self._sides_of(frame),
            mode=chosen,
            trigger=None if isinstance(trigger, RealTime) else trigger,
            restart=restart or self._restart,
            start=in_real_time,
        )

    def start(self, *, once: bool = False) -> None:
        """Run in the background: until `stop`, or with `once` until what is there now is processed."""
        if self._run is not None and not self._run.ended:
            raise PipelineError(f"pipeline {self.name!r} runs already")
        if not self._planned:
            raise ConfigError(f"pipeline {self.name!r} has nothing to do: give it a `write`")
        self._run = PipelineRun(self, once=once or current_run().once)
        _starts.append(self.name)
        self._run.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end. Whether it came within this time; the error of a query that failed is raised here."""
        if self._run is None:
            raise PipelineError(f"pipeline {self.name!r} was not started")
        return self._run.wait(timeout_s)

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Let the batches that are on their way leave, for at most this time, then end. One that ended stays so."""
        if self._run is not None:
            self._run.stop(drain_s)

    def run(self, *, once: bool = False, drain_s: float = DRAIN_S) -> None:
        """Start, and wait for the end. SIGTERM and SIGINT stop it, as `stop` does, when this is the main thread."""
        run_together([self], once=once, drain_s=drain_s)

    def progress(self) -> Mapping[str, QueryProgress]:
        """How each query gets on."""
        return self._book.now()

    def undecodable(self) -> Mapping[str, int]:
        """By topic, how many of its records wait in the dead letters because this pipeline could not decode them."""
        counts = {}
        for topic, place in self._letters.items():
            with contextlib.closing(open_dead_letters(place, self.connection)) as letters:
                counts[topic] = letters.count(LetterFilter(group=self.name, topic=topic))
        return counts

    def close(self) -> None:
        """Stop, and let go of the connection. The session stays, as others may use it."""
        self.stop()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name_of(self, topic: Topic[Any] | str) -> str:
        name = topic.name if isinstance(topic, Topic) else topic
        if not isinstance(name, str) or not name:
            raise ConfigError(f"pipeline {self.name!r}: {topic!r} is no topic: give a Topic, or the name of one")
        return name

    def _topic_to_read(self, topic: Topic[Any] | str) -> str:
        """The topic that a name leads to. One that this pipeline itself writes is the one of its own version, and is
        created now if it was never written."""
        name = self._name_of(topic)
        target = self._outputs.get(name)
        if not isinstance(target, TopicTarget) or target.name is None:
            return current_topic(self.connection, name)
        topics_for(target, self.connection)
        return target.name

    def _decoder(self, topic: Topic[Any] | str, dead_letters: str | None) -> Decoder | None:
        if not isinstance(topic, Topic):
            if dead_letters is not None:
                raise ConfigError(
                    f"topic {topic!r} is read as it is, and every record can be: dead_letters={dead_letters!r} would "
                    f"stay empty. Give the topic a type, Topic({topic!r}, SomeType), or leave them out"
                )
            return None
        decoder = Decoder(
            topic,
            url=self.url,
            dead_letters=dead_letters or True,
            group=self.name,
            version=self.version or "",
            client=self._client,
        )
        assert decoder.dead_letters is not None
        self._letters[topic.name] = decoder.dead_letters
        return decoder

    def _sides_of(self, frame: DataFrame) -> list[SideOutput]:
        """The gates in front of this frame whose late rows no earlier query sends on."""
        sides = []
        for index, (gate, target) in enumerate(self._gates):
            if index not in self._taken and gate.is_in(frame):
                self._taken.add(index)
                sides.append(SideOutput(gate, target))
        return sides

    def _real_time(
        self, frame: DataFrame, targets: Sequence[Target], trigger: RealTime, what: str
    ) -> realtime.Start | None:
        """How the query is started in real-time mode; None, with a word why, where it cannot be."""
        if len(targets) != 1 or not isinstance(targets[0], TopicTarget):
            raise ConfigError(f"{what}: real-time mode writes to one topic, and to nothing else")
        target = targets[0]
        if target.guarantee is not Guarantee.AT_LEAST_ONCE:
            raise GuaranteeError(
                f"{what}: real-time mode writes each result at least once: say guarantee='at-least-once', or leave "
                f"trigger=RealTime() out"
            )
        return realtime.plan(frame, target, trigger, what)


def _count_rows(frame: DataFrame, _: int) -> int:
    """For queries that do their work on the way."""
    return frame.count()


def _name_from(label: str) -> str:
    """The name of a query, of the label of its first target: `topic spend` is `spend`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in label.rpartition(" ")[2]).strip(
        ".-"
    )


def run_together(pipelines: Sequence[Pipeline], *, once: bool = False, drain_s: float = DRAIN_S) -> None:
    """Run pipelines until all have ended, or until SIGTERM or SIGINT; when one fails, the others are stopped."""
    run_until_signal(pipelines, once=once, drain_s=drain_s)
