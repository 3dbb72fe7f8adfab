"""The data source behind `spark.readStream.format("penstock")` and `spark.read.format("penstock")`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.sink.data_source import batch_writer, stream_writer
from penstock.spark.source.origin import Origin, Range, TaskInput, split, whole_partitions
from penstock.spark.source.position_lookup import FAIL, resolve_position, skip_expired_records
from penstock.spark.source.read_options import CLIENT_PREFIX, MODES, SourceOptions, decoded, parse_options
from penstock.spark.source.stream_reader import PenstockStreamReader
from penstock.spark.source.table_cache import current_table
from penstock.spark.source.task_reading import read_range
from penstock.spark.source.topic_view import open_topics


class PenstockBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        view = open_topics(options.url, options.selection, options.client)
        try:
            described = view.describe()
            begin = resolve_position(view, described, options.start, "startingPosition")
            ends = resolve_position(view, described, options.end, "endingPosition")
            for (topic, partition), pointer in ends.items():
                if begin[topic, partition] > pointer:
                    raise ConfigError(
                        f"partition {partition} of topic {topic!r} would be read from {begin[topic, partition]} back "
                        f"to {pointer}: endingPosition is before startingPosition"
                    )
            begin = skip_expired_records(view, begin, ends, FAIL)
            origin = view.origin()
        finally:
            view.close()
        ranges = [Range(*each, begin[each], ends[each]) for each in described.partitions]
        parts = (split if origin.has_offsets else whole_partitions)(ranges, options.tasks)
        # Spark turns an empty list into one partition without a value: an empty topic is one task without ranges.
        return [TaskInput(origin, part) for part in parts or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskInput)
        options = self._options
        rows = (batch for each in partition.ranges for batch in read_range(partition.origin, each, options.columns))
        return decoded(rows, options)


class TableInput(InputPartition):
    """One partition of a table."""

    def __init__(self, origin: Origin, partition: int) -> None:
        super().__init__(None)
        self.origin = origin
        self.partition = partition


class PenstockTableReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        view = open_topics(self._options.url, self._options.selection, self._options.client)
        try:
            described = view.describe()
            origin = view.origin()
        finally:
            view.close()
        return [TableInput(origin, partition) for _, partition in described.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TableInput)
        table = current_table(self._options, partition.origin, partition.partition)
        return (batch for batch in table.to_batches() if len(batch))


class PenstockDataSource(DataSource):
    """Records of any stream, by URL. `penstock.spark.source.read_options.NAMES` lists the options."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """The columns of a record, or the chosen ones, or the columns of the decoder."""
        of_schema = ("url", "secreturl", "topic", "topics", "topicpattern", "decoder", "columns")
        told = {
            name: value
            for name, value in self.options.items()
            if name.lower() in of_schema or name.lower().startswith(CLIENT_PREFIX)
        }
        return parse_options(told, streaming=True).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, streaming=False)
        _check_schema(schema, options.schema())
        return PenstockTableReader(options) if options.mode == MODES[1] else PenstockBatchReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options, streaming=True)
        _check_schema(schema, options.schema())
        return PenstockStreamReader(options)


def _check_schema(asked: StructType, given: StructType) -> None:
    if [(field.name, field.dataType) for field in asked] != [(field.name, field.dataType) for field in given]:
        raise ConfigError(
            f'the format "penstock" has the schema {given.simpleString()}: omit .schema(...), and select and cast'
        )
