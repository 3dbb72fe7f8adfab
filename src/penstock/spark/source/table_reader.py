"""A topic as a table: for each key the latest value, without those that are gone (a key whose latest value is null).

It is the static side of joins. Which partitions there are is settled when the query is planned; how far each is read is
settled anew whenever a task reads, so that every micro-batch joins with the table as it is then. A Python worker keeps
the table of a partition and reads only what has come since (`kept_tables`).

Records without a key belong to no row, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.source.kept_tables import current_table
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.origin import Origin
from penstock.spark.source.topic_view import open_topic


class TableInput(InputPartition):
    """The table of one partition."""

    def __init__(self, origin: Origin, partition: int) -> None:
        super().__init__(None)
        self.origin = origin
        self.partition = partition


class PenstockTableReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        view = open_topic(self._options.url, self._options.topic, self._options.client)
        try:
            described = view.describe()
            origin = view.origin()
        finally:
            view.close()
        return [TableInput(origin, partition) for partition in described.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TableInput)
        table = current_table(self._options, partition.origin, partition.partition)
        return (batch for batch in table.to_batches() if len(batch))
