"""Capacity planning: from the load to partitions, disks, workers, brokers and cores.

Pure arithmetic, shown step by step. It rests on measured figures (`FIGURES`, each with its source) and on stated
margins; with better figures for your machines you can redo every line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError

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
    """The file with the measurement; `a choice` for a margin."""


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
FIGURES: Final = (
    *WRITE_COST.values(),
    *READ_COST.values(),
    *(HANDLING_PER_S, WORKER_SHARE, KAFKA_WRITE_BYTES_PER_S, SPARK_ROWS_PER_CORE_S, RECOVERY_S_PER_GB, FRAMING_BYTES),
    *(PARTITION_BYTES_PER_S, SEGMENT_BYTES, BUSY, FILL, WORKERS_PER_PROCESS, CORES_PER_EXECUTOR),
)


_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_TIMES: Final = (("years", 365 * 86_400.0), ("days", 86_400.0), ("h", 3600.0), ("min", 60.0))


def bytes_text(size_bytes: float) -> str:
    """512 B, 5.1 MB, 3.02 TB: three digits and a unit of a thousand."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:,.0f} {unit}"


def time_text(duration_s: float) -> str:
    """0.27 s, 12 min, 33.6 h, 7 days."""
    for unit, length_s in _TIMES:
        if duration_s >= 2 * length_s:
            return f"{_short(duration_s / length_s)} {unit}"
    return f"{_short(duration_s)} s"


def per_s_text(rate_per_s: float) -> str:
    return f"{_short(rate_per_s)}/s"


def count_text(count: float) -> str:
    return _short(count)


def _short(number: float) -> str:
    """1,234,567 or 12.3 or 0.27."""
    if number >= 1000 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


MOST_PARTITIONS: Final = 10_000
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The load and the requirements. Raises ConfigError for impossible ones."""

    rate_per_s: float
    """Records a second at peak."""
    size_bytes: int
    """Size of a record: key, value and headers as sent, so after compression."""
    retention_s: float
    readers: int = 1
    """Groups that each read everything."""
    handler_ms: float | None = None
    """How long the slowest group's handler takes for a record."""
    keys: int | None = None
    """How many different keys there are, if order by key matters."""
    replication: int = 1
    disk_bytes: int | None = None
    """The disk of one machine."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("rate", self.rate_per_s, 0.0),
            ("size", self.size_bytes, 0),
            ("retention", self.retention_s, 0.0),
        ):
            if not value > least or not math.isfinite(value):
                raise ConfigError(f"{name} {value} must be positive")
        if self.handler_ms is not None and not 0 <= self.handler_ms <= 3_600_000:
            raise ConfigError(f"a handler that takes {self.handler_ms} ms cannot be planned for: give 0 to an hour")
        for name, count, fewest in (
            ("readers", self.readers, 0),
            ("keys", self.keys, 1),
            ("replication", self.replication, 1),
        ):
            if count is not None and count < fewest:
                raise ConfigError(f"{name} {count} must be at least {fewest}")

    @property
    def bytes_per_s(self) -> float:
        return self.rate_per_s * self.size_bytes

    @property
    def stored_per_s(self) -> float:
        return self.rate_per_s * (self.size_bytes + FRAMING_BYTES.value)


@dataclass(frozen=True, slots=True)
class PlanLine:
    what: str
    value: float
    unit: str
    text: str
    how: str


@dataclass(frozen=True, slots=True)
class Plan:
    lines: tuple[PlanLine, ...]
    is_one_log_enough: bool
    verdict: str
    """Whether one embedded log is enough, or Apache Kafka is needed, and why."""
    warnings: tuple[str, ...]
    figures: tuple[Figure, ...]

    def __getitem__(self, what: str) -> PlanLine:
        return next(line for line in self.lines if line.what == what)


def plan(demand: Demand) -> Plan:
    workers = _workers(demand)
    processes = _processes(demand, workers)
    cores = _spark_cores(demand)
    partitions = _partitions(demand, processes, cores)
    busy = _busy(demand)
    disk = _disk(demand, partitions)
    brokers = _brokers(demand, disk)
    reasons = list(_reasons_for_kafka(demand, busy, disk))
    lines = (
        *_flow(demand),
        partitions,
        busy,
        disk,
        *_buffer(demand),
        _recovery(demand),
        *((workers,) if workers is not None else ()),
        processes,
        *_catching_up(demand, workers, processes),
        brokers,
        cores,
        _executors(cores),
    )
    if reasons:
        verdict = f"Apache Kafka is needed, with {brokers.text}: {'; '.join(reasons)}"
    else:
        verdict = f"one embedded log is enough: it would be busy for {busy.text} of the time"
    return Plan(lines, not reasons, verdict, tuple(_warnings(demand, partitions)), FIGURES)


def cost_us(size_bytes: int, measured: dict[int, Figure]) -> tuple[float, str]:
    """The cost of a record of this size, interpolated between the two measured sizes, and the calculation."""
    small, large = measured[100], measured[1000]
    per_byte = (1e6 / large.value - 1e6 / small.value) / 900
    fixed = 1e6 / small.value - 100 * per_byte
    found = fixed + per_byte * size_bytes
    return found, f"{fixed:.2f} us + {size_bytes:,} B x {per_byte * 1000:.2f} ns = {found:.2f} us"


def _flow(demand: Demand) -> Iterator[PlanLine]:
    coming = demand.bytes_per_s
    yield PlanLine(
        "records a day",
        demand.rate_per_s * DAY_S,
        "records",
        count_text(demand.rate_per_s * DAY_S),
        f"{per_s_text(demand.rate_per_s)} x 86,400 s",
    )
    yield PlanLine(
        "comes in",
        coming,
        "bytes/s",
        f"{bytes_text(coming)}/s",
        f"{per_s_text(demand.rate_per_s)} x {demand.size_bytes:,} B ({coming * 8 / 1e9:.3g} Gbit/s)",
    )
    copies = demand.replication - 1
    going = coming * (demand.readers + copies)
    yield PlanLine(
        "goes out",
        going,
        "bytes/s",
        f"{bytes_text(going)}/s",
        f"{bytes_text(coming)}/s x ({demand.readers} readers + {copies} replicas) ({going * 8 / 1e9:.3g} Gbit/s)",
    )


def _busy(demand: Demand) -> PlanLine:
    write_us, write_how = cost_us(demand.size_bytes, WRITE_COST)
    read_us, read_how = cost_us(demand.size_bytes, READ_COST)
    share = demand.rate_per_s * (write_us + demand.readers * read_us) / 1e6
    return PlanLine(
        "embedded log busy",
        share,
        "share",
        f"{share:.1%}",
        f"{per_s_text(demand.rate_per_s)} x (write {write_how}, and {demand.readers} x read {read_how}); "
        f"up to {BUSY.value:.0%} is planned",
    )


def _disk(demand: Demand, partitions: PlanLine) -> PlanLine:
    kept = demand.stored_per_s * demand.retention_s
    open_each = min(SEGMENT_BYTES.value, demand.stored_per_s / partitions.value * SEGMENT_S.value)
    opened = open_each * partitions.value
    total = (kept + opened) * demand.replication / FILL.value
    return PlanLine(
        "disk",
        total,
        "bytes",
        bytes_text(total),
        f"({per_s_text(demand.rate_per_s)} x ({demand.size_bytes:,} + {FRAMING_BYTES.value:.0f}) B x "
        f"{time_text(demand.retention_s)} = {bytes_text(kept)}, and {bytes_text(opened)} in segments that are still "
        f"written) x {demand.replication} replicas / {FILL.value:.0%} full",
    )


def _buffer(demand: Demand) -> Iterator[PlanLine]:
    """How long a reader may stop before it loses records."""
    kept_s, how = demand.retention_s, f"retention {time_text(demand.retention_s)}"
    if demand.disk_bytes is not None:
        full_s = demand.disk_bytes * FILL.value / demand.stored_per_s
        yield PlanLine(
            "disk full after",
            full_s / 3600,
            "hours",
            time_text(full_s),
            f"{bytes_text(demand.disk_bytes)} x {FILL.value:.0%} / ({per_s_text(demand.rate_per_s)} x "
            f"({demand.size_bytes:,} + {FRAMING_BYTES.value:.0f}) B), one copy of everything on one machine",
        )
        if full_s < kept_s:
            kept_s, how = full_s, f"the disk is full before the retention of {time_text(demand.retention_s)} is over"
    yield PlanLine("a reader may stand still for", kept_s / 3600, "hours", time_text(kept_s), how)


def _recovery(demand: Demand) -> PlanLine:
    unsafe = demand.stored_per_s * 60
    found = unsafe / 1e9 * RECOVERY_S_PER_GB.value
    how = f"{bytes_text(unsafe)} of the last minute x {RECOVERY_S_PER_GB.value:.2f} s/GB"
    return PlanLine("restart after a crash", found, "s", time_text(found), how)


def _workers(demand: Demand) -> PlanLine | None:
    if demand.handler_ms is None:
        return None
    found = max(1, math.ceil(demand.rate_per_s * demand.handler_ms / 1000 / WORKER_SHARE.value / BUSY.value))
    return PlanLine(
        "handler workers",
        found,
        "workers",
        count_text(found),
        f"{per_s_text(demand.rate_per_s)} x {demand.handler_ms:g} ms / {WORKER_SHARE.value:.0%} of their time in the "
        f"handler / {BUSY.value:.0%} busy, for each reader; threads if it waits, cores if it computes",
    )


def _processes(demand: Demand, workers: PlanLine | None) -> PlanLine:
    by_rate = demand.rate_per_s / (HANDLING_PER_S.value * BUSY.value)
    how = f"{per_s_text(demand.rate_per_s)} / ({HANDLING_PER_S.value:,.0f}/s x {BUSY.value:.0%})"
    by_workers = 0.0
    if workers is not None:
        by_workers = workers.value / WORKERS_PER_PROCESS.value
        how += f", and {workers.value:,.0f} workers / {WORKERS_PER_PROCESS.value:.0f} in a process"
    found = max(1, math.ceil(max(by_rate, by_workers)))
    return PlanLine("handler processes", found, "processes", count_text(found), f"{how}, for each reader")


def _catching_up(demand: Demand, workers: PlanLine | None, processes: PlanLine) -> Iterator[PlanLine]:
    """How fast the margin catches up after an outage."""
    able = processes.value * HANDLING_PER_S.value
    if workers is not None and demand.handler_ms:
        able = min(able, workers.value * WORKER_SHARE.value * 1000 / demand.handler_ms)
    spare = able - demand.rate_per_s
    found_s = 3600 * demand.rate_per_s / spare
    how = (
        f"{per_s_text(demand.rate_per_s)} x 1 h / ({per_s_text(able)} that they can - {per_s_text(demand.rate_per_s)})"
    )
    yield PlanLine("an hour's outage is caught up in", found_s / 3600, "hours", time_text(found_s), how)


def _partitions(demand: Demand, processes: PlanLine, cores: PlanLine) -> PlanLine:
    by_bytes = demand.stored_per_s / PARTITION_BYTES_PER_S.value
    wanted = max(1, math.ceil(max(2 * processes.value, by_bytes, cores.value)))
    how = (
        f"the most of 2 x {processes.value:,.0f} processes (to double them later), "
        f"{bytes_text(demand.stored_per_s)}/s / {bytes_text(PARTITION_BYTES_PER_S.value)}/s, "
        f"and {cores.value:,.0f} cores of Spark"
    )
    if demand.keys is not None and demand.keys < wanted:
        wanted, how = demand.keys, f"{how}; but no more than the {demand.keys:,} keys"
    return PlanLine("partitions", wanted, "partitions", count_text(wanted), how)


def _brokers(demand: Demand, disk: PlanLine) -> PlanLine:
    written = demand.stored_per_s * demand.replication
    by_writing = math.ceil(written / (KAFKA_WRITE_BYTES_PER_S.value * BUSY.value))
    how = f"{bytes_text(written)}/s with replicas / ({bytes_text(KAFKA_WRITE_BYTES_PER_S.value)}/s x {BUSY.value:.0%})"
    needed = by_writing
    if demand.disk_bytes is not None:
        by_disk = math.ceil(disk.value / demand.disk_bytes)
        needed = max(needed, by_disk)
        how += f", {bytes_text(disk.value)} / {bytes_text(demand.disk_bytes)} of disk"
    found = max(needed + 1, demand.replication, 3)
    how = f"the most of {how}; one more, so that one may fail; at least 3"
    return PlanLine("Kafka brokers", found, "brokers", f"{found:,} brokers", how)


def _spark_cores(demand: Demand) -> PlanLine:
    found = max(1, math.ceil(demand.rate_per_s / (SPARK_ROWS_PER_CORE_S.value * BUSY.value)))
    how = f"{per_s_text(demand.rate_per_s)} / ({SPARK_ROWS_PER_CORE_S.value:,.0f} rows/s x {BUSY.value:.0%})"
    how += ", for one pipeline with windows, exactly-once"
    return PlanLine("Spark cores", found, "cores", count_text(found), how)


def _executors(cores: PlanLine) -> PlanLine:
    found = math.ceil(cores.value / CORES_PER_EXECUTOR.value)
    how = f"{cores.value:,.0f} cores / {CORES_PER_EXECUTOR.value:.0f} in each; one alone needs no cluster"
    return PlanLine("Spark executors", found, "executors", count_text(found), how)


def _reasons_for_kafka(demand: Demand, busy: PlanLine, disk: PlanLine) -> Iterator[str]:
    if demand.replication > 1:
        yield f"{demand.replication} replicas are wanted, and the embedded log is one node on purpose"
    if busy.value > BUSY.value:
        yield f"the embedded log would be busy for {busy.text} of the time, and {BUSY.value:.0%} is planned"
    if demand.replication == 1 and demand.disk_bytes is not None and disk.value > demand.disk_bytes:
        kept_s = demand.disk_bytes * FILL.value / demand.stored_per_s
        yield (
            f"{disk.text} do not fit on one disk of {bytes_text(demand.disk_bytes)} (a larger disk, or a retention of "
            f"{time_text(kept_s)}, would do)"
        )


def _warnings(demand: Demand, partitions: PlanLine) -> Iterator[str]:
    if partitions.value > MOST_PARTITIONS:
        yield f"{partitions.text} partitions are more than one topic should have: split it, or make handlers faster"
    if demand.keys is not None and demand.handler_ms:
        share = demand.rate_per_s / demand.keys * demand.handler_ms / 1000
        if share > BUSY.value:
            yield (
                f"order by key cannot be kept up: each of {demand.keys:,} keys has "
                f"{demand.rate_per_s / demand.keys:.3g} records/s x {demand.handler_ms:g} ms = {share:.0%} of the time "
                "of the one worker that may have it. Use finer keys, a faster handler, or order none"
            )
    if demand.size_bytes > 1_000_000:
        yield f"records of {bytes_text(demand.size_bytes)} are above max.message.bytes: raise it, or keep them aside"
