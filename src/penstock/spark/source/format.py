"""The format "penstock": what `spark.readStream.format("penstock")` and `spark.read.format("penstock")` make."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.columns import RECORD
from penstock.spark.source.batch_reader import PenstockBatchReader
from penstock.spark.source.options import MODES, parse_options
from penstock.spark.source.stream_reader import PenstockStreamReader
from penstock.spark.source.table_reader import PenstockTableReader


class PenstockDataSource(DataSource):
    """Records of any stream, by its URL. The options stand at `penstock.spark.source.options.NAMES`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """RECORD, or the columns chosen of it, or those of the decoder."""
        decoder_or_columns = {name: value for name, value in self.options.items() if name in ("decoder", "columns")}
        if not decoder_or_columns:
            return RECORD
        place = {name: value for name, value in self.options.items() if name in ("url", "topic")}
        return parse_options({**place, **decoder_or_columns}, streaming=True).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, streaming=False)
        _check_schema(schema, options.schema())
        return PenstockTableReader(options) if options.mode == MODES[1] else PenstockBatchReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink.data_source import batch_writer  # which readers do not need in their processes

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.sink.data_source import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options, streaming=True)
        _check_schema(schema, options.schema())
        return PenstockStreamReader(options)


def _check_schema(asked: StructType, given: StructType) -> None:
    if [(field.name, field.dataType) for field in asked] != [(field.name, field.dataType) for field in given]:
        raise ConfigError(
            f'the format "penstock" gives {given.simpleString()}: leave .schema(...) away; select and cast'
        )
