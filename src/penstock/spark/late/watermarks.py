"""The column metadata by which Spark marks a watermark."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

DELAY: Final = "spark.watermarkDelayMs"


def has_watermark(frame: DataFrame, column: str) -> bool:
    return DELAY in frame.schema[column].metadata


def without_watermarks(schema: StructType) -> StructType:
    """The columns without the metadata: a watermark does not pass a Python function that produces new rows."""
    return StructType(
        [
            StructField(
                field.name,
                field.dataType,
                field.nullable,
                {name: value for name, value in field.metadata.items() if name != DELAY},
            )
            for field in schema
        ]
    )
