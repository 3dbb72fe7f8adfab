"""The measured figures and the margins that capacity is planned with, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LATEST: Final = "benchmarks/results/latest.md"
_CONSUMERS: Final = "benchmarks/results/consumers.md"
_README: Final = "README.md, Figures"
_CHOSEN: Final = "a choice"


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    value: float
    unit: str
    where: str
    """The file that holds the measurement; `a choice` for a margin."""


WRITE_COST: Final = {
    100: Figure(
        "produce 100 B records, batched, acks=all with fsync, 2 cores with the client", 1_000_304, "records/s", _LATEST
    ),
    1000: Figure(
        "produce 1000 B records, batched, acks=all with fsync, 2 cores with the client", 260_315, "records/s", _LATEST
    ),
}
READ_COST: Final = {
    100: Figure("consume 100 B records, 2 cores with the client", 894_828, "records/s", _LATEST),
    1000: Figure("consume 1000 B records, 2 cores with the client", 406_640, "records/s", _LATEST),
}
HANDLING_PER_S: Final = Figure(
    "a consumer with workers, order by key, a handler that does nothing", 57_682, "records/s a process", _CONSUMERS
)
WORKER_SHARE: Final = Figure(
    "of a worker's time is its handler's: 7,115 records/s of 8 workers at 1 ms", 0.889, "share", _CONSUMERS
)
KAFKA_WRITE_BYTES_PER_S: Final = Figure(
    "Apache Kafka, 1000 B records, batched, fsync before the answer, 2 cores with the client",
    153_106_000,
    "bytes/s",
    _LATEST,
)
SPARK_ROWS_PER_CORE_S: Final = Figure(
    "Spark, log to 10 s windows to log, exactly-once with fsync: 110,000 rows/s on 2 cores",
    55_000,
    "rows/s a core",
    _README,
)
RECOVERY_S_PER_GB: Final = Figure(
    "recovery after a crash, of what was written since the last checkpoint", 0.451, "s/GB", _LATEST
)
FRAMING_BYTES: Final = Figure(
    "around a record in a batch of a hundred: lengths, time, offset, its share of the batch's 61 bytes",
    12,
    "bytes",
    "Kafka's record format",
)
SEGMENT_BYTES: Final = Figure(
    "segment.bytes: what is not deleted before it is closed", 2**30, "bytes", "the default of topics"
)
SEGMENT_S: Final = Figure(
    "segment.ms: when a segment is closed at the latest", 7 * 86_400, "s", "the default of topics"
)
PARTITION_BYTES_PER_S: Final = Figure(
    "into one partition, so that a reader can double its pace", 10_000_000, "bytes/s", _CHOSEN
)
BUSY: Final = Figure("of what was measured is planned with, as machines and days differ", 0.5, "share", _CHOSEN)
FILL: Final = Figure("of a disk is filled, as a full one stops everything", 0.8, "share", _CHOSEN)
WORKERS_PER_PROCESS: Final = Figure("threads in one process, as they share one interpreter", 32, "workers", _CHOSEN)
CORES_PER_EXECUTOR: Final = Figure("cores of one executor", 4, "cores", _CHOSEN)
