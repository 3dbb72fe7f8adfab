"""`Pipeline`: streaming queries between topics, tables and folders that are defined and run together."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from penstock.abc import Feature
from penstock.errors import ConfigError, GuaranteeError, PipelineError
from penstock.lakes.table import LakeTable
from penstock.model import Guarantee
from penstock.queues.opening import as_queue
from penstock.serde import Topic
from penstock.spark.errors.batch_rows import MOST_BAD_ROWS, check_limit
from penstock.spark.errors.expectations import expectation
from penstock.spark.errors.guarded_plans import guard_functions
from penstock.spark.errors.row_checks import Otherwise
from penstock.spark.inputs import PipelineInputs
from penstock.spark.jvm import jvm_of
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.reading import bootstrap_of, read_stream, read_table
from penstock.spark.realtime import mode as realtime
from penstock.spark.realtime.typed_reading import decoded_in_jvm, undecodable
from penstock.spark.run import triggers
from penstock.spark.run.batch_writer import SideOutput
from penstock.spark.run.checkpoint_folder import check_name, default_checkpoints
from penstock.spark.run.pipeline_run import DRAIN_S, PipelineRun, run_together
from penstock.spark.run.plans import mode_of, require_stream
from penstock.spark.run.progress import ProgressTracker, QueryProgress
from penstock.spark.run.queries import PlannedQuery
from penstock.spark.run.restart import Restart
from penstock.spark.run.settings import ENGINES, Engine, current_run
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.run.triggers import RealTime, Trigger
from penstock.spark.sessions.opening import session
from penstock.spark.sessions.packaging import ship
from penstock.spark.sessions.worker_environment import set_worker_environment
from penstock.spark.sink.folders.lake import LakeTarget
from penstock.spark.sink.functions import BatchFunction, FunctionTarget
from penstock.spark.sink.sql.table import SqlTable
from penstock.spark.sink.target import OutputMode, Target
from penstock.spark.sink.topic import TopicTarget
from penstock.spark.source.admission import Alignment
from penstock.spark.source.queue_spool import QueueSpool
from penstock.spark.source.read_options import RowDecoder, absolute_url
from penstock.spark.values.decoding import Decoder
from penstock.spark.versions import checkpoint_name, version_to_run, versioned
from penstock.streams import Connection, connect
from penstock.streams.connecting import check_url
from penstock.streams.options import ConnectOptions
from penstock.streams.schemes import scheme_of
from penstock.streams.topic_patterns import TopicChoice, TopicPattern, described, topics_of
from penstock.streams.url import KAFKA_SCHEMES, without_password
from penstock.streams.url_settings import client_with, resolved

_defined: list[weakref.ref[Pipeline]] = []
_starts: list[str] = []


def defined_pipelines(besides: Sequence[Pipeline] = ()) -> list[Pipeline]:
    """The pipelines of this process that still exist, in order of creation, without those in `besides`."""
    return [pipeline for each in _defined if (pipeline := each()) is not None and pipeline not in besides]


def started_pipelines() -> Sequence[str]:
    """The names of all pipelines started in this process, in order, including those that no longer exist."""
    return tuple(_starts)


class Pipeline:
    """A named set of streaming queries that share a URL and a checkpoint folder and run together.

    `url` is the stream whose topics are read and written. `checkpoints` is the folder for state that survives a
    restart; the default is a folder beside the records of an embedded log, else `./pipelines`. On a cluster, the driver
    and the executors must all reach it. `engine` chooses how topics are read: "native" is Spark's Kafka connector,
    "python" is Penstock's own source, "auto" the faster one that is available. `client` has options of
    `penstock.connect`.

    A row for which a UDF fails, or that does not meet an expectation, goes to the dead letters of its topic, and the
    rest of its batch goes on. A batch with more than `max_bad_rows` such rows, a count or a share of its rows, stops
    its query. With `guard=False`, UDFs stay as they are: their errors fail the batch.

    The progress of each query is committed as the offsets of the group `PIPELINE.QUERY`, where the stream has groups,
    so that tools for groups show its lag; `group_offsets=False` switches it off. Queries continue from their
    checkpoints, not from these offsets.

    `spark` is the session; by default the session of this process, which the constructor starts if needed. To configure
    it, call `penstock.spark.session(conf=...)` first.

    No query runs before `run` or `start`. Mistakes that are detectable earlier raise where they are made.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        checkpoints: str | None = None,
        engine: Engine = "auto",
        restart: Restart | None = None,
        max_bad_rows: int | float = MOST_BAD_ROWS,
        guard: bool = True,
        group_offsets: bool = True,
        spark: SparkSession | None = None,
        client: ConnectOptions | None = None,
    ) -> None:
        check_name(name, "the name of a pipeline")
        if spark is not None:
            jvm_of(spark)
        check_url(url)
        check_limit(max_bad_rows, f"pipeline {name!r}")
        if engine not in ENGINES:
            raise ConfigError(f"pipeline {name!r}: engine={engine!r} is not allowed: use {', '.join(ENGINES)}")
        settings = current_run()
        self.name = name
        self.url = without_password(url)
        """Without credentials, so it can be shown."""
        self._stream_url = self.url if scheme_of(url) in KAFKA_SCHEMES else url
        """With credentials, unless these are in `client`."""
        self._settings = settings
        self.engine: Engine = settings.engine or engine
        self._checkpoints = settings.checkpoints or checkpoints or default_checkpoints(url)
        self._restart = restart or Restart()
        self._max_bad_rows = max_bad_rows
        self._guards = guard
        self._group_offsets = group_offsets
        self._client = client_with(url, client)
        self._connection: Connection | None = None
        self._planned: dict[str, PlannedQuery] = {}
        self._gates: list[tuple[OnTimeGate, Target]] = []
        self._taken: set[int] = set()
        self._tracker = ProgressTracker(name)
        self._run: PipelineRun | None = None
        self._spark = spark if spark is not None else session(f"penstock {name}")
        self._shipped = False
        state = StateFolder(self._checkpoints, self._spark)
        # A proxy, as a cycle would keep a discarded pipeline among the `defined_pipelines`.
        self._inputs = PipelineInputs(weakref.proxy(self), self._stream_url, state)
        _defined.append(weakref.ref(self))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {self.url!r})"

    @property
    def spark(self) -> SparkSession:
        """The session. The first use sends the program's files to the executors."""
        if not self._shipped:  # before the first Python function is created: it captures what was shipped by then
            set_worker_environment(self._spark)
            ship(self._spark, self._settings.program)
            self._shipped = True
        return self._spark

    @property
    def connection(self) -> Connection:
        """The connection to the stream. It also keeps the broker of an embedded log running."""
        if self._connection is None:
            self._connection = connect(self._stream_url, **self._client)
        return self._connection

    @property
    def client(self) -> ConnectOptions:
        """Options of the connection to the stream."""
        return self._client

    @property
    def commits_offsets(self) -> bool:
        """Whether the progress of queries is committed as the offsets of groups."""
        return self._group_offsets and self.connection.features >= {Feature.GROUPS, Feature.OFFSETS}

    def addresses(self) -> set[str]:
        """The texts by which sources name the stream of this pipeline: its URL, and the brokers of Kafka."""
        url, client = resolved(absolute_url(self._stream_url), self._client)
        return {without_password(url), bootstrap_of(url, client)}

    @functools.cached_property
    def version(self) -> str | None:
        """The version of the pipeline: the one given to `penstock run`, else the current one. None is the first."""
        return version_to_run(self.connection, self.name, self._settings)

    @property
    def label(self) -> str:
        """The name, followed by the version unless it is the first."""
        return checkpoint_name(self.name, self.version)

    @property
    def folder(self) -> StateFolder:
        """The checkpoint folder of this version of the pipeline."""
        return StateFolder(self._checkpoints, self._spark).below(self.label)

    @property
    def queries(self) -> Sequence[PlannedQuery]:
        return tuple(self._planned.values())

    @property
    def spools(self) -> Sequence[QueueSpool]:
        """The spools of the queues that are read."""
        return tuple(self._inputs.spools.values())

    @property
    def tracker(self) -> ProgressTracker:
        return self._tracker

    @property
    def started(self) -> bool:
        """Whether it runs or has run in this process."""
        return self._run is not None

    def read(
        self,
        topic: TopicChoice,
        *,
        start: str | Mapping[int, int] | Mapping[str, Mapping[int, int]] | None = None,
        max_records_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        align_partitions: Alignment | None = None,
        on_expired: str = "fail",
        dead_letters: str | bool | None = True,
        engine: Engine | None = None,
        real_time: bool = False,
        type: Any = None,
        queue_options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """Read a topic as a streaming DataFrame.

        A typed topic has one column per field of its type, then the columns of the record: `key`, `headers`, `topic`,
        `partition`, `pointer`, `timestamp`, `timestamp_type` (named `record_NAME` where the type has a field of that
        name). Records that cannot be decoded go to the dead letters, by default `TOPIC.dlq`, with their bytes and
        pointer; with `dead_letters` None or False they fail the query. So do rows made from the topic that a
        `SqlTable` refuses because their key is null. A topic given by name has the columns of the record and `value`.

        `topic` may also be a list, or a pattern: `re.compile(...)`, or a `TopicPattern` with a type. Topics of a list
        must have the same columns; the column `topic` tells which one a row is from. Topics that match a pattern and
        are created later join at the next batch, from their beginning. A deleted topic is logged; it fails the query
        only if records of it were not read, or if it is the only one.

        `topic` may also be the URL of a queue: a thread of the driver moves its records into an embedded log beside the
        checkpoints while the pipeline runs, at least once, and queries read that log. `type` is the type of its values,
        and `queue_options` are those of its backend.

        `start` (earliest, latest, a time, or pointers by partition) applies when there is no checkpoint yet; the
        default is earliest. A `Topic` that does not exist is created as declared, and so is a topic that an earlier
        `write` of this pipeline targets; a run with `once` reads that topic after the writing query has finished.
        `real_time` is for queries with `trigger=RealTime()`, which cannot run Python: Spark's Kafka connector reads,
        Spark parses the JSON, and a second query finds the records for the dead letters. `on_expired` decides what
        happens when records expired before they were read: fail, earliest, latest or a time.
        """
        queue = as_queue(topic)
        if queue is not None:
            if not isinstance(queue, str):
                raise ConfigError(f"pipeline {self.name!r} opens queues itself: give the URL of the queue")
            if real_time or start is not None or on_expired != "fail" or engine == "native":
                raise ConfigError(
                    f"pipeline {self.name!r}: real_time, start, on_expired and engine=native are for topics, not for "
                    "queues: omit them"
                )
            decoder_of_queue, spool = self._inputs.queue(queue, queue_options or {}, type, dead_letters)
            return read_stream(
                self.spark,
                spool.log_url,
                spool.topic,
                engine="python",
                max_records_per_batch=max_records_per_batch,
                max_bytes_per_batch=max_bytes_per_batch,
                align_partitions=align_partitions,
                decoder=decoder_of_queue,
            )
        if type is not None or queue_options is not None:
            raise ConfigError(
                f"pipeline {self.name!r}: type and queue_options are for queues; give a Topic with a type"
            )
        topics = topics_of(topic)
        decoder: RowDecoder | None
        names: TopicChoice
        if isinstance(topics, TopicPattern) or len(topics) > 1:
            if real_time:
                raise ConfigError(f"pipeline {self.name!r}: real_time=True reads one topic, not {described(topics)}")
            decoder, names = self._inputs.topics(topics, dead_letters)
        else:
            decoder, names = self._inputs.topic(topics[0], dead_letters)
        frame = read_stream(
            self.spark,
            self._stream_url,
            names,
            engine="native" if real_time else engine or self.engine,
            start=current_run().start or (start if start is not None else "earliest"),
            max_records_per_batch=max_records_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            align_partitions=align_partitions,
            on_expired=on_expired,
            decoder=None if real_time else decoder,
            client=self._client,
        )
        if not real_time or not isinstance(decoder, Decoder):
            return frame
        self.write(undecodable(frame, decoder), _count_rows, name=f"{decoder.topic.name}.undecodable")
        return decoded_in_jvm(frame, decoder)

    def table(self, topic: Topic[Any] | str, *, dead_letters: str | bool | None = True) -> DataFrame:
        """Read a topic as a table: the latest value of each key, without keys whose latest value is null.

        A join with a stream sees the current table in every batch, without a restart. Each batch gets the whole table:
        for millions of rows, read the changes as a stream and keep them in state instead. `dead_letters` is as in
        `read`.
        """
        decoder, name = self._inputs.topic(topic, dead_letters, is_table=True)
        return read_table(self.spark, self._stream_url, name, decoder=decoder, client=self._client)

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
        late: str | Topic[Any] | Target | LakeTable | None = None,
    ) -> DataFrame:
        """Keep the rows whose windows are still open; `column` is the event time, `grace` the watermark's delay.

        `window` (with `slide` for hopping and `offset` for shifted windows) or `gap` (for session windows) must match
        the aggregation that follows. With `late`, rows whose windows are all closed go to that target, once each;
        without it Spark drops them, and they are only counted. With `slide`, rows that are late for some of their
        windows go there too, and the column `late_windows` lists the windows that each row missed.
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
        given = target_of(late, lambda topic: TopicTarget(self._stream_url, topic, client=self._client))
        target = versioned(given, self.version)
        gated = gate.apply(frame)
        target.check(gate.schema, "append")
        self._gates.append((gate, target))
        return gated

    def expect(
        self, name: str, condition: str | Column, *, otherwise: Otherwise = "dead_letter"
    ) -> Callable[[DataFrame], DataFrame]:
        """Expect a condition of every row of a frame: `orders.transform(pipe.expect("positive", "cents > 0"))`.

        `condition` is SQL or a Column; null counts as not met. A row that does not meet it is dropped and counted
        ("drop"), goes to the dead letters of its topic ("dead_letter"), or stops the query ("fail"). The letter has the
        record that the row was made from if the frame has its columns `topic`, `partition` and `pointer`; otherwise it
        has the row as JSON. `progress` counts such rows by the name of the expectation.
        """
        return expectation(name, condition, otherwise, f"pipeline {self.name!r}")

    def write(
        self,
        frame: DataFrame,
        *to: str | Topic[Any] | Target | LakeTable | Callable[[DataFrame, int], object],
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
        """Write the rows of a frame to one or several targets, as one query.

        A target is the name of a topic, a `Topic`, a target such as `SqlTable` or `Folder`, or a function of a batch
        and its number. `key`, `guarantee`, `idempotency_key`, `compact` and `partitions` apply to the topics among
        them. `mode` is append where results are final and update where they change; the default is append if the frame
        allows it, else update. `name` names the query and its checkpoint; the default is the name of the first target.
        """
        if not to:
            raise ConfigError(f"pipeline {self.name!r}: write needs a target, such as the name of a topic")

        def topic_target(topic: str | Topic[Any]) -> TopicTarget:
            return TopicTarget(
                self._stream_url,
                topic,
                key=key,
                guarantee=guarantee,  # type: ignore[arg-type]  # converted by the constructor
                idempotency_key=idempotency_key,
                compact=compact,
                partitions=partitions,
                client=self._client,
            )

        targets = [target_of(each, topic_target) for each in to]
        label = name if name is not None else _name_from(targets[0].label)
        what = f"query {label!r} of pipeline {self.name!r}"
        check_name(label, "the name of a query")
        if label in self._planned:
            raise ConfigError(f"{what} already exists: give this one another name, name='...'")
        if self.started:
            raise ConfigError(f"{what}: the pipeline is already running; call write before it is started")
        require_stream(frame, what)
        triggers.check(trigger, what)
        versions = [versioned(target, self.version) for target in targets]
        in_real_time = into_table = None
        if isinstance(trigger, RealTime) and len(versions) == 1 and isinstance(versions[0], SqlTable):
            into_table = realtime.plan_table(frame, versions[0], trigger, what)
        elif isinstance(trigger, RealTime) and not current_run().once:
            in_real_time = self._real_time(frame, versions, trigger, what)
        chosen = mode_of(frame, "update" if in_real_time is not None else mode, what)
        for target in targets:
            target.check(frame.schema, chosen)
        self._inputs.add_outputs(
            {
                target.name: version
                for target, version in zip(targets, versions, strict=True)
                if isinstance(target, TopicTarget) and isinstance(version, TopicTarget) and target.name is not None
            }
        )
        bad_rows = self._inputs.row_letters(frame)
        guards = self._guards and bad_rows is not None and into_table is None
        self._planned[label] = PlannedQuery(
            name=label,
            frame=frame,
            targets=versions,
            sides=self._sides_of(frame),
            mode=chosen,
            trigger=None if isinstance(trigger, RealTime) else trigger,
            restart=restart or self._restart,
            refused=self._inputs.refused_rows(frame),
            bad_rows=bad_rows,
            guards=guards,
            guarded=guard_functions(frame, what) if guards and in_real_time is None else None,
            max_bad_rows=self._max_bad_rows,
            start=in_real_time,
            start_table=into_table,
        )

    def start(self, *, once: bool = False) -> None:
        """Run in the background until `stop`; with `once`, until the input that is there now is processed."""
        if self._run is not None and not self._run.ended:
            raise PipelineError(f"pipeline {self.name!r} is already running")
        if not self._planned:
            raise ConfigError(f"pipeline {self.name!r} has no queries: call `write`")
        self._run = PipelineRun(self, once=once or current_run().once)
        _starts.append(self.name)
        self._run.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all queries have ended; False after the timeout. Raises the error of a query that failed."""
        if self._run is None:
            raise PipelineError(f"pipeline {self.name!r} was not started")
        return self._run.wait(timeout_s)

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Let running batches finish, for at most `drain_s`, then stop. Does nothing after the end."""
        if self._run is not None:
            self._run.stop(drain_s)

    def run(self, *, once: bool = False, drain_s: float = DRAIN_S, quiet: bool = False) -> None:
        """Start, and wait for the end. In the main thread, SIGTERM and SIGINT stop it as `stop` does.

        A terminal on standard error shows the progress of the queries, unless `quiet`. Otherwise, progress is logged at
        the start, every minute and at the end."""
        run_together([self], once=once, drain_s=drain_s, quiet=quiet)

    def progress(self) -> Mapping[str, QueryProgress]:
        """The progress of each query, by name."""
        return self._tracker.now()

    def undecodable(self) -> Mapping[str, int]:
        """For each topic, the number of dead letters of records that this pipeline could not decode."""
        return self._inputs.undecodable()

    def close(self) -> None:
        """Stop, and close the connection. The session stays open, as others may use it."""
        self.stop()
        for spool in self.spools:
            spool.stop()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sides_of(self, frame: DataFrame) -> list[SideOutput]:
        """The gates of this frame whose late rows no earlier query delivers."""
        sides = []
        for index, (gate, target) in enumerate(self._gates):
            if index not in self._taken and gate.is_in(frame):
                self._taken.add(index)
                sides.append(SideOutput(gate, target))
        return sides

    def _real_time(
        self, frame: DataFrame, targets: Sequence[Target], trigger: RealTime, what: str
    ) -> realtime.Start | None:
        """The function that starts the query in real-time mode; None, with a log line, where that is impossible."""
        if len(targets) != 1 or not isinstance(targets[0], TopicTarget):
            raise ConfigError(f"{what}: real-time mode writes to exactly one topic, or one table of PostgreSQL")
        target = targets[0]
        if target.guarantee is not Guarantee.AT_LEAST_ONCE:
            raise GuaranteeError(
                f"{what}: real-time mode delivers at least once: set guarantee='at-least-once', or omit "
                f"trigger=RealTime()"
            )
        return realtime.plan(frame, target, trigger, what)


def _count_rows(frame: DataFrame, _: int) -> int:
    """The target of queries whose work is a side effect of reading their rows."""
    return frame.count()


def _name_from(label: str) -> str:
    """The name of a query by the label of its first target: `spend` for `topic spend`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in label.rpartition(" ")[2]).strip(
        ".-"
    )


def target_of(
    spec: str | Topic[Any] | Target | LakeTable | BatchFunction, topic_target: Callable[[str | Topic[Any]], TopicTarget]
) -> Target:
    """The target for a topic's name, a `Topic`, a target or a function. `topic_target` makes the target of a topic."""
    if isinstance(spec, str | Topic):
        return topic_target(spec)
    if isinstance(spec, LakeTable):
        return LakeTarget(spec)
    if isinstance(spec, Target):
        return spec
    if callable(spec):
        return FunctionTarget(spec)
    raise ConfigError(
        f"{spec!r} is not a target: give the name of a topic, a Topic, SqlTable(...), LakeTable(...), Folder(...), or "
        "a function of a batch and its number"
    )
