"""What a guard costs: a UDF as it is, and guarded as in every pipeline, on the same rows in one run.

`python -m benchmarks spark-guards`. A guarded UDF also gets the place of each row's record, and answers whether it
failed. No row fails here.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas import functions as vectorised

from benchmarks.report import Report, Row
from penstock.spark.errors.guarded_plans import guard_functions
from penstock.spark.sessions.opening import session

ROWS: Final = 500_000
BAR: Final = 1 / 1.5


def by_row(number: int) -> int:
    return number * 2


def by_arrow(numbers: pa.Array) -> pa.Array:
    return pc.multiply(numbers, 2)


def by_pandas(numbers: pd.Series) -> pd.Series:
    return numbers * 2


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    rows = max(1_000, int(ROWS * scale))
    cores = min(2, os.cpu_count() or 1)
    spark = session("guards", master=f"local[{cores}]", conf={"spark.driver.memory": "1g"})
    makers: Any = vectorised  # its overloads know no functions of Arrow arrays
    functions: dict[str, Any] = {
        "UDF": F.udf(by_row, "long", useArrow=True),
        "UDF without Arrow": F.udf(by_row, "long", useArrow=False),
        "arrow_udf": makers.arrow_udf(by_arrow, "long"),
        "pandas_udf": makers.pandas_udf(by_pandas, "long"),
    }
    for name, function in functions.items():
        plain = _records(spark, rows).select(function("pointer").alias("doubled"))
        ways = {"plain": plain, "guarded": guard_functions(plain, name)}
        assert ways["guarded"] is not plain
        took: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, frame in ways.items():
                began = time.perf_counter()
                (found,) = frame.agg(F.count("*"), F.sum("doubled")).collect()
                assert tuple(found) == (rows, rows * (rows - 1)), "every row counts"
                if number:  # the first round warms up
                    took[way].append(time.perf_counter() - began)
        rates = {way: rows / statistics.median(each) for way, each in took.items()}
        say(f"    {name}: guarded {rates['guarded']:,.0f}, plain {rates['plain']:,.0f} rows/s")
        report.rows.append(Row(name, rates["guarded"], "guarded", rates["plain"], "plain", "rows/s", BAR))
    spark.stop()
    report.notes.append(
        f"Guarded UDFs: {rows:,} rows that a function doubles, summed in the JVM, {cores} cores, median of {rounds} "
        f"rounds in turn after one to warm up; pyspark {version('pyspark')}."
    )


def _records(spark: SparkSession, rows: int) -> DataFrame:
    """Rows with the columns that say which record they are from."""
    numbers = spark.range(0, rows, 1, 2).withColumnRenamed("id", "pointer")
    return numbers.withColumns({"topic": F.lit("orders"), "partition": (F.col("pointer") % 8).cast("int")})
