"""Tables that belong together, and the version of their layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    upgrades: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """For each older version that can become the next one: the statements. What is in the tables stays there."""

    def creation(self) -> tuple[str, ...]:
        """All statements that create the tables."""
        return (
            f"CREATE TABLE {self.version_table} (version INTEGER NOT NULL)",
            *self.statements,
            f"INSERT INTO {self.version_table} VALUES ({self.version})",
        )

    def upgrade(self, rows: Sequence[Any], where: str) -> tuple[str, ...]:
        """The statements that make existing tables those of this version; none if they are.

        `rows` are those of the version's table. Raises ConfigError if no upgrade leads from that version to this one.
        """
        found = rows[0][0] if len(rows) == 1 else None
        if found == self.version:
            return ()
        older = range(found, self.version) if isinstance(found, int) else range(0)
        if not older or not self.upgrades.keys() >= set(older):
            text = ", ".join(str(row[0]) for row in rows) or "unknown"
            raise ConfigError(
                f"{where} has {self.what} of version {text}; this program supports only version {self.version}: run "
                "the newer Penstock that wrote them, or choose another database"
            )
        statements = [statement for version in older for statement in self.upgrades[version]]
        return (*statements, f"UPDATE {self.version_table} SET version = {self.version}")
