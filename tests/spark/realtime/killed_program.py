"""A pipeline in real-time mode into PostgreSQL: `killed_program.py LOG_URL DATABASE_URL CHECKPOINTS [once]`."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from penstock.spark import Pipeline, RealTime, SqlTable, session


def main(log_url: str, database_url: str, checkpoints: str, once: bool) -> None:
    spark = session("killed", master="local[4]", conf={"spark.sql.streaming.realTimeMode.minBatchDuration": "1000"})
    with Pipeline("killed", log_url, checkpoints=checkpoints, spark=spark) as pipe:
        numbers = pipe.read("numbers", real_time=True)
        halves = (
            numbers.withColumn("number", F.col("value").cast("string").cast("long"))
            .where("number % 10 != 9")
            .select("number", F.explode(F.array(F.lit("left"), F.lit("right"))).alias("half"))
        )
        pipe.write(halves, SqlTable(database_url, "halves"), name="halves", trigger=RealTime("1 second"))
        pipe.run(once=once, quiet=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], once="once" in sys.argv[4:])
