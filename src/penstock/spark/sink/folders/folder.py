"""`Folder`: a folder of files, or a Delta table, as a target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.lakes.table import LakeTable
from penstock.spark.sink.file_systems import is_local
from penstock.spark.sink.folders.file_delivery import FolderDelivery
from penstock.spark.sink.folders.lake import LakeDelivery, LakeTarget
from penstock.spark.sink.target import Delivery, OutputMode, QueryIdentity
from penstock.spark.values.columns import require_columns

FileFormat = Literal["parquet", "delta", "json", "csv"]
FORMATS: Final = ("parquet", "delta", "json", "csv")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, by path or URI, to which each batch is delivered exactly once.

    `format` is parquet, json (one line per row), csv (with a header), or delta, which needs `penstock[delta]`.
    `partition_by` are columns whose values become folders. In complete mode, a batch replaces what the query wrote
    before. Update mode is refused: files cannot be changed.

    Readers of a Delta table see a batch completely or not at all: to upsert into one, or to add columns, write to a
    `LakeTable`. Readers of the other formats may see a part of a batch while it is published, or after the driver died
    then, until it is started again; but never a part of a file, and nothing twice. In complete mode, they may see a
    batch together with the one that it replaces.
    """

    path: str
    format: FileFormat = "parquet"
    partition_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("a folder needs a path")
        if self.format not in FORMATS:
            raise ConfigError(f"format={self.format!r} must be one of {', '.join(FORMATS)}")
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
                f"{self.label}: update mode repeats changed rows, and files cannot be changed: write to "
                "SqlTable(..., key=...) or to a topic with compact=True, or use mode='complete', or append with a "
                "watermark"
            )
        require_columns(schema.names, self.partition_by, " to partition by", what=f"the frame for {self.label}")
        if len(self.partition_by) >= len(schema.names):
            raise SchemaMismatchError(f"{self.label}: at least one column must not be in partition_by")
        for field in schema:
            if self.format == "csv" and isinstance(field.dataType, ArrayType | BinaryType | MapType | StructType):
                raise SchemaMismatchError(
                    f"{self.label}: column {field.name!r} is {field.dataType.simpleString()}, which CSV cannot hold: "
                    "use format='parquet' or 'json', or convert it to a string"
                )
        if self.format == "delta":
            LakeTarget(self._lake_table()).check(schema, mode)

    def open(self, identity: QueryIdentity) -> Delivery:
        columns = tuple(self.partition_by)
        if self.format == "delta":
            return LakeDelivery(self._lake_table(), identity)
        return FolderDelivery(self.path, self.format, columns, identity, self.label)

    def _lake_table(self) -> LakeTable:
        return LakeTable(f"delta:{self.path}", partition_by=self.partition_by, evolve=False)

    def for_version(self, version: str) -> Folder:
        """The folder for this version of a pipeline, beside this one."""
        return replace(self, path=f"{self.path.rstrip('/')}.{version}")
