"""The batch reader: everything between two positions, which become pointers when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import ConfigError
from penstock.spark.source.chosen_pointers import FAIL, chosen_pointers, without_expired
from penstock.spark.source.decoded import decoded
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.origin import Range, TaskInput
from penstock.spark.source.splitting import split
from penstock.spark.source.task_reading import read_range
from penstock.spark.source.topic_view import open_topic


class PenstockBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        view = open_topic(options.url, options.topic, options.client)
        try:
            described = view.describe()
            begin = chosen_pointers(view, options.topic, described, options.start, "startingPosition")
            ends = chosen_pointers(view, options.topic, described, options.end, "endingPosition")
            for partition, pointer in ends.items():
                if begin[partition] > pointer:
                    raise ConfigError(
                        f"partition {partition} of topic {options.topic!r} would be read from {begin[partition]} back "
                        f"to {pointer}: endingPosition is before startingPosition"
                    )
            begin = without_expired(view, options.topic, begin, ends, FAIL)
            origin = view.origin()
        finally:
            view.close()
        ranges = [Range(partition, begin[partition], ends[partition]) for partition in described.partitions]
        # Spark takes no partitions at all for one without a value, so an empty topic is one task without ranges.
        return [TaskInput(origin, share) for share in split(ranges, options.tasks) or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskInput)
        options = self._options
        rows = (batch for each in partition.ranges for batch in read_range(partition.origin, each, options.columns))
        return decoded(rows, options)
