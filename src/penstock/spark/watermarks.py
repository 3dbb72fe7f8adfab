"""How Spark marks the column that a watermark is on."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

DELAY: Final = "spark.watermarkDelayMs"


def has_watermark(frame: DataFrame, column: str) -> bool:
    return DELAY in frame.schema[column].metadata


def without_watermarks(schema: StructType) -> StructType:
    """The same columns without the marks: where a function makes the rows anew, no watermark reaches behind it."""
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
