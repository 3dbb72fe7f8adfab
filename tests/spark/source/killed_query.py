"""A query that kills its own driver in the middle of its second batch:

    python -m tests.spark.source.killed_query URL CHECKPOINT FOLDER

The rows of each batch are in a file of the folder, by the batch's number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.spark import session
from penstock.spark.reading import read_stream

LIMIT: Final = 8


def run(spark: SparkSession, url: str, checkpoint: str, folder: Path, killed_in: int | None) -> None:
    def keep(rows: DataFrame, batch_id: int) -> None:
        found = sorted([row.partition, row.pointer, row.value.decode()] for row in rows.collect())
        (folder / f"{batch_id}.{killed_in}.json").write_text(json.dumps(found))
        if batch_id == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

    frame = read_stream(spark, url, "orders", max_records_per_batch=LIMIT)
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()


if __name__ == "__main__":
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    run(session("killed", master="local[2]", conf=conf), sys.argv[1], sys.argv[2], Path(sys.argv[3]), 1)
