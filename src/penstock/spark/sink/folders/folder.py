"""`Folder`: a folder of files, or a Delta table, as a place for results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.sink.file_systems import is_local
from penstock.spark.sink.folders.publishing import FolderDelivery
from penstock.spark.targets import Delivery, OutputMode, QueryIdentity

FileFormat = Literal["parquet", "delta", "json", "csv"]
FORMATS: Final = ("parquet", "delta", "json", "csv")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, by its path or URI, in which each batch counts once: exactly-once for each query and batch.

    `format` is parquet, json (a line for each row), csv (with a header), or delta, which needs `penstock[delta]`.
    `partition_by` are columns whose values become folders. In complete mode a batch replaces what the query has
    written before. Update mode is refused: files cannot be changed.

    Readers of a Delta table see a batch whole or not at all. Those who read the other formats file by file may see a
    part of a batch while it is published, or when the driver died then, until it is started again; never a part of a
    file, and nothing twice. In complete mode they may see a batch beside the one that it replaces.
    """

    path: str
    format: FileFormat = "parquet"
    partition_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("a folder needs a path")
        if self.format not in FORMATS:
            raise ConfigError(f"format={self.format!r} is not one of {', '.join(FORMATS)}")
        if is_local(self.path):
            object.__setattr__(self, "path", os.path.abspath(os.path.expanduser(self.path)))
        columns = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        object.__setattr__(self, "partition_by", columns)

    @property
    def label(self) -> str:
        return f"folder {self.path}"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        if mode == "update":
            raise ConfigError(
                f"{self.label}: update mode brings rows that changed again, and files cannot be changed: write to "
                "SqlTable(..., key=...) or to a topic with compact=True, or use mode='complete', or append with a "
                "watermark"
            )
        for name in self.partition_by:
            if name not in schema.names:
                raise SchemaMismatchError(
                    f"{self.label}: there is no column {name!r} to partition by; there are {', '.join(schema.names)}"
                )
        if len(self.partition_by) >= len(schema.names):
            raise SchemaMismatchError(f"{self.label}: no column is left for the files beside those in partition_by")
        for field in schema:
            if self.format == "csv" and isinstance(field.dataType, ArrayType | BinaryType | MapType | StructType):
                raise SchemaMismatchError(
                    f"{self.label}: column {field.name!r} is {field.dataType.simpleString()}, which has no place in "
                    "CSV: use format='parquet' or 'json', or make text of it"
                )
        if self.format == "delta":
            self._delta_is_there()

    def open(self, identity: QueryIdentity) -> Delivery:
        columns = tuple(self.partition_by)
        if self.format == "delta":
            from penstock.spark.sink.folders.delta import DeltaDelivery

            return DeltaDelivery(self.path, columns, identity, self.label)
        return FolderDelivery(self.path, self.format, columns, identity, self.label)

    def for_version(self, version: str) -> Folder:
        """The folder of this version of a pipeline, beside this one."""
        return replace(self, path=f"{self.path.rstrip('/')}.{version}")

    def _delta_is_there(self) -> None:
        from penstock.spark.sink.folders import delta  # noqa: F401  # MissingExtraError, if it is not
