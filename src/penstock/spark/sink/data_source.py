"""The format "penstock" as a sink, for plain Spark: `writeStream.format("penstock")`, `write.format("penstock")`.

It takes records: a column `value` of text or bytes, and perhaps `key`, `headers`, `topic`, `partition` and `timestamp`,
as Spark's own Kafka sink does. Stages and publishes as `TopicTarget` does; here, Spark calls each step in a process of
its own, so what must stay open between batches is kept for the process.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

from penstock.errors import ConfigError
from penstock.model import Guarantee
from penstock.spark.sink.arrow_records import as_records, check_records
from penstock.spark.sink.direct import DirectWriter
from penstock.spark.sink.options import SinkOptions, parse_sink_options
from penstock.spark.sink.publishing import Publisher
from penstock.spark.sink.staged import Staged
from penstock.spark.sink.staging import Part, Stager, told_part
from penstock.spark.sink.staging_folder import StagingFolder
from penstock.spark.sink.topic_delivery import StagedRows
from penstock.spark.sink.topics import TopicMaker
from penstock.spark.source.held_brokers import held_broker
from penstock.spark.targets import QueryIdentity

_FORMAT: Final = 'format("penstock")'
_MOST_OPEN: Final = 32


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """What Spark calls for the batches of a stream. In complete mode all rows are sent again with each batch."""
    chosen = parse_sink_options(options)
    check_records(schema, chosen.topic)
    return StreamSink(chosen)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """What Spark calls for a batch query: its rows count all at once, when they all are there."""
    if overwrite:
        raise ConfigError(
            f'{_FORMAT} cannot overwrite: what is in a topic stays. Say mode("append"), or delete the topic first'
        )
    chosen = parse_sink_options(options)
    check_records(schema, chosen.topic)
    return BatchSink(chosen, uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells: which query it worked for, and what it has staged, if it had rows and staged them."""

    query: str
    part: Part | None


@dataclass(frozen=True, slots=True)
class StreamSink(DataSourceStreamArrowWriter):
    """For one streaming query: exactly-once for each of its batches, or at-least-once from the tasks."""

    options: SinkOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        assert context is not None, "rows are written by tasks of Spark"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "Spark tells each task of a stream its query"
        assert batch is not None, "Spark tells each task of a stream its batch"
        return TaskMessage(query, _write(self.options, _staging(self.options, query), int(batch), iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = _told(messages)
        parts = _parts(told)
        if not parts:
            return
        query = told[0].query
        folder = _staging(self.options, query)
        opened = _opened(self.options, query)
        if not opened.publisher.is_delivered(batchId):
            opened.publish(Staged(folder, batchId, parts))
        folder.remove(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _forget_staged(self.options, messages, batchId)


@dataclass(frozen=True, slots=True)
class BatchSink(DataSourceArrowWriter):
    """For one batch query: all of its rows, or none."""

    options: SinkOptions
    job: str
    """Made when the query is planned; so a job that is run again writes again."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return TaskMessage(self.job, _write(self.options, _staging(self.options, self.job), 0, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = _parts(_told(messages))
        if not parts:
            return
        opened = _Opened(self.options, self.job)
        try:
            opened.publish(Staged(_staging(self.options, self.job), 0, parts))
            opened.publisher.forget()
        finally:
            opened.close()
            _staging(self.options, self.job).clear()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _staging(self.options, self.job).clear()


def _write(
    options: SinkOptions, folder: StagingFolder, batch_id: int, batches: Iterator[pa.RecordBatch]
) -> Part | None:
    """In a task: stage the rows, or send them where they need not count once."""
    records = (as_records(batch, options.topic) for batch in batches)
    if options.guarantee is Guarantee.AT_LEAST_ONCE:
        bootstrap = held_broker(options.url, options.client).bootstrap
        client: Any = dict(options.client)
        DirectWriter(bootstrap, client, options.topic, options.partitions, options.compact).write(records)
        return None
    for told in Stager(folder, batch_id)(records):
        return told_part(told)
    return None


def _told(messages: list[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]


def _parts(messages: list[TaskMessage]) -> tuple[Part, ...]:
    parts = (message.part for message in messages if message.part is not None)
    return tuple(sorted(parts, key=lambda part: part.partition))


def _staging(options: SinkOptions, query: str) -> StagingFolder:
    """Beside the checkpoint, where its place is known, as driver and executors must reach it."""
    above = options.staging or f"{tempfile.gettempdir()}/penstock-spark"
    return StagingFolder(f"{above.rstrip('/')}/{query}")


def _forget_staged(options: SinkOptions, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
    for query in {message.query for message in _told(messages)}:
        _staging(options, query).remove(batch_id)


class _Opened:
    """A topic that was opened for a query in this process."""

    def __init__(self, options: SinkOptions, query: str) -> None:
        self.options = options
        connection = held_broker(options.url, options.client)
        self._topics = TopicMaker(connection.administration, options.partitions, compact=options.compact)
        label = f"topic {options.topic}" if options.topic is not None else f"topics of {options.url}"
        identity = QueryIdentity(_FORMAT, query, f"{query}/{label}", "")
        self.publisher = Publisher(connection, identity, label, options.transaction_timeout_s)
        self.publisher.open()

    def publish(self, staged: Staged) -> None:
        rows = StagedRows(staged, self.options.topic, self._topics)
        self.publisher.publish(staged.batch_id, rows, staged.rows)

    def close(self) -> None:
        self.publisher.close()


_open: Final[dict[str, _Opened]] = {}


def _opened(options: SinkOptions, query: str) -> _Opened:
    """That of this process, or a new one. One in another process of the same query is thereby fenced; it is not used
    again, as Spark commits one batch after the other."""
    found = _open.pop(query, None)
    if found is None or found.options != options:
        if found is not None:
            found.close()
        found = _Opened(options, query)
        while len(_open) >= _MOST_OPEN:
            _open.pop(next(iter(_open))).close()
    _open[query] = found
    return found
