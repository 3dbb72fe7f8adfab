"""The contract of a table format. `delta` and `iceberg` fulfil it by the libraries of these projects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.lakes.commits import LakeCommit

Rows: TypeAlias = "pa.Table | pa.RecordBatchReader"


class ConflictError(Exception):
    """Another writer has committed since `load`, and nothing was written: load again, check again, try again."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one commit does to a table."""

    rows: Callable[[], Rows]
    """The rows to add; called again for each attempt."""
    key: tuple[str, ...] = ()
    """With a key, rows replace those with the same values in these columns. Then `rows` gives a table in which each
    key is once."""
    deleted: pa.Table | None = None
    """The keys whose rows are deleted, if there is a key."""
    replaces_all: bool = False
    """Whether the rows replace the whole table."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When small files are merged, and how long old versions are kept."""

    small_files: int = 32
    """The least number of small files that are worth it."""
    target_bytes: int = 128 * 1024 * 1024
    """Files of less than half of this are small; they become files of about this size."""
    retain_s: float = 7 * 24 * 3600.0
    """How long versions that are no longer current can be read. Then their files are deleted."""

    def __post_init__(self) -> None:
        for name, least in (("small_files", 2), ("target_bytes", 1), ("retain_s", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise ConfigError(f"{name}={value!r} must be a number >= {least}")


class TableFormat(Protocol):
    """One table, as of its last `load`. Used by one thread. OSError: it cannot be reached for now."""

    def load(self) -> bool:
        """Read the newest version. False: there is no such table."""

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table. Raises ConflictError if another writer was faster."""

    def schema(self) -> pa.Schema:
        """The columns, without metadata of the format."""

    def version(self) -> int | None:
        """The version that was loaded; None for a table without one."""

    def position(self, application: str) -> int | None:
        """The position of a writer; None if it has none here."""

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns that may be null, in a commit of their own. Raises ConflictError."""

    def write(self, change: TableChange, positions: Mapping[str, int], metadata: Mapping[str, str]) -> int:
        """Commit rows, positions and metadata together, on the loaded version. Returns the new one.

        Raises ConflictError, and changes nothing, if one of these positions has changed since `load`.
        """

    def commits(self) -> Iterator[LakeCommit]:
        """The commits that led to the loaded version, newest first, as far as they are kept."""

    def compact(self, compaction: Compaction) -> int:
        """Merge small files, and return how many. Rows stay what they are. Raises ConflictError."""

    def expire(self, compaction: Compaction) -> int:
        """Forget old versions, and delete the files that only these have. Returns how many files."""
