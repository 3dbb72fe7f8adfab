"""Tables that belong together, and the version of their layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError, PenstockError


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one store. Their names begin with `penstock_`, because the database may be the user's own."""

    what: str
    """What the tables hold, in messages: "checkpoints"."""
    version: int
    version_table: str
    """The table with one row, the version. It exists if and only if all others do."""
    statements: tuple[str, ...]
    """Create the tables, except for the version's."""
    damaged: type[PenstockError] = ConfigError
    """Raised when a database file is damaged."""

    def creation(self) -> tuple[str, ...]:
        """All statements that create the tables."""
        return (
            f"CREATE TABLE {self.version_table} (version INTEGER NOT NULL)",
            *self.statements,
            f"INSERT INTO {self.version_table} VALUES ({self.version})",
        )

    def check(self, rows: Sequence[Any], where: str) -> None:
        """Refuse tables of another version. `rows` are those of the version's table."""
        if rows != [(self.version,)]:
            found = ", ".join(str(row[0]) for row in rows) or "unknown"
            raise ConfigError(
                f"{where} has {self.what} of version {found}; this program supports only version {self.version}: run "
                "the newer Penstock that wrote them, or choose another database"
            )
