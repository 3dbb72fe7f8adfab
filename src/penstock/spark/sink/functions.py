"""`FunctionTarget` and `Console`: targets that call a function for each batch or print it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from penstock.errors import ConfigError
from penstock.spark.sink.target import Delivered, Delivery, OutputMode, QueryIdentity

BatchFunction = Callable[[DataFrame, int], object]
"""Called with the rows of a batch and its number."""


@dataclass(frozen=True, slots=True)
class FunctionTarget:
    """Calls a function with each batch, at least once.

    If the driver dies before Spark has committed a batch, the function is called again with the same batch number. To
    write once, store the number with the rows. If the function returns an integer, that many rows are counted as
    delivered; otherwise none are, as counting them would compute them again.
    """

    function: BatchFunction
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"{self.function!r} is not a function of a batch and its number")

    @property
    def label(self) -> str:
        return f"function {self.name or getattr(self.function, '__name__', type(self.function).__name__)}"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """Any rows can be passed to a function."""

    def open(self, identity: QueryIdentity) -> Delivery:
        return FunctionDelivery(self.function)


class FunctionDelivery:
    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        answer = self._function(frame, batch_id)
        return Delivered(answer if isinstance(answer, int) and not isinstance(answer, bool) else 0)

    def close(self) -> None:
        """Do nothing: the function holds no resources."""


@dataclass(frozen=True, slots=True)
class Console:
    """Prints each batch as a table, at least once, to see what a query does."""

    rows: int = 20
    """The maximum number of rows printed per batch."""
    truncate: bool = field(default=False, kw_only=True)
    """Whether long values are cut."""

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise ConfigError(f"rows={self.rows!r} must be an integer >= 1")

    @property
    def label(self) -> str:
        return "console"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """Anything can be printed."""

    def open(self, identity: QueryIdentity) -> Delivery:
        def show(frame: DataFrame, batch_id: int) -> int:
            frame.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                count = frame.count()
                sys.stdout.write(f"{identity.query}, batch {batch_id}: {count} rows\n")
                if count:
                    frame.show(self.rows, truncate=self.truncate)
            finally:
                frame.unpersist()
            return count

        return FunctionDelivery(show)
