"""Where the results of a query go: the contract of every target.

A streaming query hands each of its batches, by number, to `Delivery.deliver`, from inside Spark's foreachBatch. After a
crash the last batch comes again under the same number, with the same input but perhaps in another order and from other
tasks, or the next one comes. What a target promises is that a batch counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

OutputMode = Literal["append", "update", "complete"]


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """Which query writes. Two runs of one query have the same identity; the newer one fences the older."""

    pipeline: str
    query: str
    """The name of the query in its pipeline: what people see."""
    id: str
    """The id that Spark keeps in the checkpoint of the query, and which of its targets it is: another one after the
    checkpoint was removed."""
    staging: str
    """A folder that driver and executors reach, beside the checkpoint, for what is staged before it counts."""
    mode: OutputMode = "append"
    """What the batches of the query are: new rows, rows that changed, or all there are in place of those before."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a batch."""

    rows: int
    """How many rows the batch brought to this target."""
    repeated: bool = False
    """The batch had been delivered by an earlier run, and nothing was done."""


class Delivery(Protocol):
    """A target that was opened for one run of one query. Used by one thread."""

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        """Make the rows of a batch count, once: when it returns they are durable where they went.

        FencedError when a newer run of the query has opened the target.
        """

    def close(self) -> None: ...


@runtime_checkable
class Target(Protocol):
    """A place for results, as a user names it. It holds no connection, and nothing happens before `open`."""

    @property
    def label(self) -> str:
        """What it is called where people read it, such as `topic spend` or `table public.spend`."""

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """Refuse rows that it cannot take, when the pipeline is built: ConfigError, SchemaMismatchError."""

    def open(self, identity: QueryIdentity) -> Delivery:
        """Connect, create what is missing, fence runs of the query that are still about, and clean what they staged."""
