"""`LakeTable`: which table, by which key, and how it may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.lakes.formats import Compaction, TableFormat
from penstock.lakes.writing import OpenTable

_FORMS: Final = (
    "delta:FOLDER or delta:s3://BUCKET/FOLDER for a Delta table; iceberg:FOLDER#NAMESPACE.TABLE for an Iceberg table "
    "in a folder of this machine, or iceberg:NAMESPACE.TABLE with catalog=... for one of any catalog"
)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A Delta or Iceberg table, as a target of `LakeSink` and of pipelines. It holds no connection.

    `uri` is `delta:FOLDER`, on this machine or such as `delta:s3://bucket/orders`; or `iceberg:FOLDER#shop.orders`,
    whose catalog is a SQLite database in that folder; or `iceberg:shop.orders` with a `catalog`: the properties of any
    catalog that pyiceberg knows, such as {"type": "rest", "uri": ...}, or the name of one in ~/.pyiceberg.yaml.

    With a `key`, one column or several, a row replaces the row with the same key; without one, rows are appended.
    `evolve` adds columns that the table lacks; columns are never dropped, and types never change. A missing table is
    created: with `schema`, an Arrow schema, or with the types that the first rows show, and with `partition_by`.
    `deletes` names a column of truth values, which is not stored: rows with true delete the row with their key.
    """

    uri: str
    key: Sequence[str] = ()
    evolve: bool = True
    partition_by: Sequence[str] = ()
    deletes: str | None = None
    schema: pa.Schema | None = None
    catalog: str | Mapping[str, str] | Any = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    """Of Delta: such as AWS_REGION and AWS_ENDPOINT_URL."""

    def __post_init__(self) -> None:
        for name in ("key", "partition_by"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given or ()))
            if not all(isinstance(each, str) for each in getattr(self, name)):
                raise ConfigError(f"{name}={given!r} must be the name of a column, or a list of them")
        if self.schema is not None and not isinstance(self.schema, pa.Schema):
            raise ConfigError(f"schema={self.schema!r} must be a pyarrow.Schema")
        scheme, _, rest = self.uri.partition(":") if isinstance(self.uri, str) else ("", "", "")
        if scheme not in ("delta", "iceberg") or not rest.strip("/"):
            raise ConfigError(f"{self.uri!r} is not the URI of a lake table: use {_FORMS}")
        if self.deletes is not None and not self.key:
            raise ConfigError(f"{self.uri}: deletes={self.deletes!r} needs a key, which says what is deleted")
        if scheme == "delta":
            if self.catalog is not None:
                raise ConfigError(f"{self.uri}: a Delta table has no catalog: omit catalog")
            return
        folder, mark, name = rest.rpartition("#")
        if self.storage_options:
            raise ConfigError(f"{self.uri}: storage_options are for Delta; put those of Iceberg into catalog={{...}}")
        if bool(mark and folder) == (self.catalog is not None):
            raise ConfigError(
                f"{self.uri!r} needs either a folder, iceberg:FOLDER#{name}, or catalog=..., and not both"
            )
        if not all(name.split(".")) or "." not in name:
            raise ConfigError(f"{self.uri!r}: {name!r} is not the name of an Iceberg table: use NAMESPACE.TABLE")

    @property
    def is_delta(self) -> bool:
        return self.uri.startswith("delta:")

    @property
    def label(self) -> str:
        return f"lake table {self.uri}"

    def open(self) -> OpenTable:
        """Open the table, which need not exist. MissingExtraError names what is not installed."""
        return OpenTable(self)

    def open_format(self) -> TableFormat:
        """The table by the library of its format."""
        rest = self.uri.partition(":")[2]
        if self.is_delta:
            from penstock.lakes.delta import DeltaFormat

            if "://" not in rest:
                rest = str(Path(rest.removeprefix("file:")).expanduser().absolute())
            return DeltaFormat(rest, self.label, self.storage_options)
        from penstock.lakes.iceberg import IcebergFormat

        folder, _, name = rest.rpartition("#")
        if not folder:
            return IcebergFormat(name, self.catalog, self.label)
        path = Path(folder).expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
        properties = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": path.as_uri()}
        return IcebergFormat(name, properties, self.label)

    def beside(self, suffix: str) -> LakeTable:
        """A table without a key in the same place, whose name ends with `suffix`."""
        return replace(
            self, uri=f"{self.uri.rstrip('/')}{suffix}", key=(), partition_by=(), deletes=None, schema=None, evolve=True
        )

    def offsets_of(self, version: int, *, group: str | None = None) -> dict[tuple[str, int], int]:
        """By topic and partition: the offset after the last record that the table had in `version`.

        `group` counts only what this group or pipeline has written. ConfigError if the version is not known any more.
        """
        return self.open().offsets_of(version, group=group)

    def version_of(self, topic: str, partition: int, offset: int, *, group: str | None = None) -> int | None:
        """The version of the table in which this record arrived; None if no version that it still knows did that."""
        return self.open().version_of(topic, partition, offset, group=group)

    def compact(self, compaction: Compaction | None = None) -> int:
        """Merge small files, and delete the files of versions that are older than is kept. Returns how many files were
        merged. Writers may go on meanwhile."""
        return self.open().compact(compaction)
