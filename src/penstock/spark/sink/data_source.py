"""The format "penstock" as a sink, for plain Spark: `writeStream.format("penstock")`, `write.format("penstock")`.

Its rows are records: a column `value` of text or bytes, and optionally `key`, `headers`, `topic`, `partition` and
`timestamp`, as in Spark's own Kafka sink. It stages and publishes as `TopicTarget` does. Spark calls each step in a
Python process that serves many batches, so that process keeps the publisher open between batches.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, GuaranteeError
from penstock.model import Guarantee
from penstock.spark.sink.direct import DirectWriter
from penstock.spark.sink.publishing import TRANSACTION_TIMEOUT_S, Publisher
from penstock.spark.sink.rows import check_records, written_columns
from penstock.spark.sink.staging import Part, Staged, Stager, StagingFolder, in_order, part_of
from penstock.spark.sink.target import QueryIdentity, guarantee_of
from penstock.spark.sink.topic_delivery import Appender, StagedRows
from penstock.spark.sink.topics import TopicCreator
from penstock.spark.source.held_brokers import held_broker
from penstock.spark.source.open_streams import ResourceCache
from penstock.spark.source.read_options import (
    absolute_url,
    choice,
    client_options,
    named_options,
    number,
    positive,
)
from penstock.streams.connecting import open_stream
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, without_password
from penstock.streams.url_settings import resolved

NAMES: Final = {
    "url": "the stream: log:./data, kafka://host:9092",
    "topic": "the topic; without it, each row names one in the column `topic`",
    "guarantee": "exactly-once (the default) or at-least-once",
    "partitions": "the number of partitions of a topic that is created; the default is the broker's",
    "compact": "true: a topic that is created keeps the last record of each key",
    "transactionTimeoutS": "how long publishing one batch may take, in seconds",
    "stagingFolder": "where rows are staged; the default is in the folder of the checkpoint",
}
_CHECKPOINT: Final = "checkpointlocation"
_OF_SPARK: Final = frozenset({_CHECKPOINT, "queryname", "path"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options. They are pickled and sent to all tasks."""

    url: str = field(repr=False)
    topic: str | None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    partitions: int | None = None
    compact: bool = False
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S
    staging: str | None = None
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options of a writer. Raises ConfigError, UrlError and GuaranteeError."""
    options, settings = named_options(given, NAMES, "writing", _OF_SPARK)
    guarantee = guarantee_of(options.get("guarantee", Guarantee.EXACTLY_ONCE), 'the format "penstock"')
    url = absolute_url(options["url"])
    if scheme_of(url) not in KAFKA_SCHEMES:
        _refuse_what_only_kafka_has(options, guarantee)
    url, client = resolved(url, client_options(settings, options["url"]))
    return SinkOptions(
        url=url,
        topic=options.get("topic"),
        guarantee=guarantee,
        partitions=positive(options, "partitions"),
        compact=choice(options, "compact", ("false", "true")) == "true",
        transaction_timeout_s=_timeout_s(options),
        staging=_staging_folder(options, given),
        client=client,
    )


def _refuse_what_only_kafka_has(options: Mapping[str, str], guarantee: Guarantee) -> None:
    shown = without_password(options["url"])
    if guarantee is Guarantee.EXACTLY_ONCE:
        raise GuaranteeError(
            f"exactly-once is not available on {shown}: it does not speak Kafka's protocol, whose transactions publish "
            "Spark's batches; set the option guarantee to at-least-once"
        )
    for name in ("compact", "transactionTimeoutS", "stagingFolder"):
        if name in options:
            raise ConfigError(f"the option {name!r} does not apply to {shown}: omit it")


def _timeout_s(options: Mapping[str, str]) -> float:
    name = "transactionTimeoutS"
    timeout_s = number(name, options[name], float) if name in options else TRANSACTION_TIMEOUT_S
    if not 1 <= timeout_s <= 900:
        raise ConfigError(f"the option {name!r} is {timeout_s:g}; it must be between 1 and 900 seconds")
    return timeout_s


def _staging_folder(options: Mapping[str, str], given: Mapping[str, str]) -> str | None:
    if options.get("stagingFolder"):
        return options["stagingFolder"]
    checkpoint = next((value for name, value in given.items() if name.lower() == _CHECKPOINT), None)
    return None if checkpoint is None else f"{checkpoint.rstrip('/')}/penstock-staging"


_FORMAT: Final = 'format("penstock")'
_MOST_OPEN: Final = 32


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of a streaming query. In complete mode, each batch sends all rows again."""
    chosen = parse_sink_options(options)
    check_records(schema, chosen.topic)
    return StreamSink(chosen)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The writer of a batch query, which publishes all of its rows at once."""
    if overwrite:
        raise ConfigError(f'{_FORMAT} cannot overwrite a topic: use mode("append"), or delete the topic first')
    chosen = parse_sink_options(options)
    check_records(schema, chosen.topic)
    return BatchSink(chosen, uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """The result of a task: its query, and the rows that it staged, if any."""

    query: str
    part: Part | None


@dataclass(frozen=True, slots=True)
class StreamSink(DataSourceStreamArrowWriter):
    """The writer of one streaming query: exactly-once per batch, or at-least-once from the tasks."""

    options: SinkOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        assert context is not None, "rows are written by tasks of Spark"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "Spark sets this property in tasks of a stream"
        assert batch is not None, "Spark sets this property in tasks of a stream"
        return TaskMessage(query, _write(self.options, _staging(self.options, query), int(batch), iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        results = _results(messages)
        parts = _parts(results)
        if not parts:
            return
        query = results[0].query
        folder = _staging(self.options, query)
        sink = _open_sink(self.options, query)
        if not sink.publisher.is_delivered(batchId):
            sink.publish(Staged(folder, batchId, parts))
        folder.remove(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for query in {message.query for message in _results(messages)}:
            _staging(self.options, query).remove(batchId)


@dataclass(frozen=True, slots=True)
class BatchSink(DataSourceArrowWriter):
    """The writer of one batch query: all of its rows, or none."""

    options: SinkOptions
    job: str
    """An id created when the query is planned: a job that is run again writes again."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return TaskMessage(self.job, _write(self.options, _staging(self.options, self.job), 0, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = _parts(_results(messages))
        if not parts:
            return
        sink = _OpenSink(self.options, self.job)
        try:
            sink.publish(Staged(_staging(self.options, self.job), 0, parts))
            sink.publisher.forget()
        finally:
            sink.close()
            _staging(self.options, self.job).clear()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _staging(self.options, self.job).clear()


def _write(
    options: SinkOptions, folder: StagingFolder, batch_id: int, batches: Iterator[pa.RecordBatch]
) -> Part | None:
    """In a task: stage the rows, or send them if the guarantee is at-least-once."""
    records = (written_columns(batch, options.topic) for batch in batches)
    if scheme_of(options.url) not in KAFKA_SCHEMES:
        with contextlib.closing(Appender(open_stream(options.url, **options.client), options.partitions)) as appender:
            for batch in records:
                appender.append(batch, options.topic)
        return None
    if options.guarantee is Guarantee.AT_LEAST_ONCE:
        bootstrap = held_broker(options.url, options.client).bootstrap
        client: Any = dict(options.client)
        DirectWriter(bootstrap, client, options.topic, options.partitions, options.compact).write(records)
        return None
    for result in Stager(folder, batch_id)(records):
        return part_of(result)
    return None


def _results(messages: list[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]


def _parts(messages: list[TaskMessage]) -> tuple[Part, ...]:
    return in_order(message.part for message in messages if message.part is not None)


def _staging(options: SinkOptions, query: str) -> StagingFolder:
    """The staging folder of a query: beside the checkpoint if that is known, as driver and executors must reach it."""
    above = options.staging or f"{tempfile.gettempdir()}/penstock-spark"
    return StagingFolder(f"{above.rstrip('/')}/{query}")


class _OpenSink:
    def __init__(self, options: SinkOptions, query: str) -> None:
        self.options = options
        connection = held_broker(options.url, options.client)
        self._topics = TopicCreator(connection.administration, options.partitions, compact=options.compact)
        label = f"topic {options.topic}" if options.topic is not None else f"topics of {without_password(options.url)}"
        identity = QueryIdentity(_FORMAT, query, f"{query}/{label}", "")
        self.publisher = Publisher(connection, identity, label, options.transaction_timeout_s)
        self.publisher.open()

    def publish(self, staged: Staged) -> None:
        rows = StagedRows(staged, self.options.topic, self._topics)
        self.publisher.publish(staged.batch_id, rows, staged.rows)

    def close(self) -> None:
        self.publisher.close()


_open: Final = ResourceCache[_OpenSink](_MOST_OPEN)


def _open_sink(options: SinkOptions, query: str) -> _OpenSink:
    """The open sink of this process, or a new one, which fences the one of another process: Spark commits one batch
    after the other, and does not use that one again."""
    found = _open.get(query, lambda: _OpenSink(options, query))
    if found.options != options:
        _open.drop(query)
        found = _open.get(query, lambda: _OpenSink(options, query))
    return found
