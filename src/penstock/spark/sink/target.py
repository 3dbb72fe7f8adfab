"""The contract of every target.

A streaming query passes each batch with its number to `Delivery.deliver`, inside Spark's foreachBatch. After a crash,
Spark repeats the last batch or continues with the next one. A repeated batch has the same number and input, but its
rows may come in another order and from other tasks. A target guarantees that each batch counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.errors import GuaranteeError
from penstock.model import Guarantee, NewRecord

if TYPE_CHECKING:
    from penstock.spark.sink.refused_rows import RefusedRows

OutputMode = Literal["append", "update", "complete"]


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The query that writes. All runs of a query have the same identity; a newer run fences an older one."""

    pipeline: str
    query: str
    """The name of the query in its pipeline."""
    id: str
    """Spark's id of the query, from its checkpoint, and the label of the target. A new checkpoint has a new id."""
    staging: str
    """A folder beside the checkpoint that driver and executors reach, for staged rows."""
    mode: OutputMode = "append"
    """Whether batches contain new rows, changed rows, or the complete result."""
    refused: RefusedRows | None = None
    """Where rows go that the target refuses; None: such a row fails its batch."""
    offsets: Callable[[int], Mapping[tuple[str, int], tuple[int, int]]] | None = None
    """For a batch, by topic and partition: the offsets of its input, the first one and the one after the last. None:
    they are not known."""
    on_evaluated: Callable[[int, str | None], Sequence[NewRecord]] | None = None
    """See `evaluated`."""

    def evaluated(self, batch_id: int, stream: str | None = None) -> Sequence[NewRecord]:
        """To be called when the rows of a batch are computed, and before any of them is committed.

        Stores the bad rows that were left out of the batch. Raises BadRowsError if there are too many: then nothing may
        be committed. A target that delivers batches again when they are repeated need not call it.

        A target that commits in a transaction of Kafka gives the URL of its stream: dead letters in topics of that
        stream are not stored then; they are the answer, to be appended in the same transaction.
        """
        return () if self.on_evaluated is None else self.on_evaluated(batch_id, stream)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The outcome of delivering a batch."""

    rows: int
    """The number of rows delivered to this target, without those refused."""
    repeated: bool = False
    """Whether an earlier run had already delivered the batch, so that nothing was done."""
    refused: int = 0
    """The number of rows that went to the dead letters instead, because the target cannot take them."""


class Delivery(Protocol):
    """A target opened for one run of one query. Used by one thread."""

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        """Deliver the rows of a batch once. They are durable when this returns.

        Raises FencedError if a newer run of the query has opened the target.
        """

    def close(self) -> None: ...


@runtime_checkable
class Target(Protocol):
    """A destination for results. It holds no connection; nothing happens before `open`."""

    @property
    def label(self) -> str:
        """A readable name, such as `topic spend` or `table public.spend`."""

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """Raise ConfigError or SchemaMismatchError for rows that it cannot store, when the pipeline is built."""

    def open(self, identity: QueryIdentity) -> Delivery:
        """Connect, create what is missing, fence older runs of the query, and remove the rows that they staged."""


def guarantee_of(given: Guarantee | str, what: str) -> Guarantee:
    """The guarantee of a target. Raises GuaranteeError for one that is neither exactly-once nor at-least-once."""
    allowed = (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE)
    if given not in allowed:
        raise GuaranteeError(f"{what}: guarantee={str(given)!r} must be one of {', '.join(map(str, allowed))}")
    return Guarantee(given)
