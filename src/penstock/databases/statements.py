"""Parts of statements that SQLite and PostgreSQL share: quoted names, the end of an upsert, what a table looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError

Execute = Callable[[str, Sequence[Any] | None], list[tuple[Any, ...]]]
"""Runs a statement with these values and returns its rows."""


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    name: str
    declared: str
    """Its type, as the database writes it."""
    is_required: bool
    """NOT NULL without a default."""
    has_default: bool
    """The database fills it: it has a default, or is generated."""


@dataclass(frozen=True, slots=True)
class ExistingTable:
    columns: Mapping[str, ExistingColumn]
    unique: frozenset[frozenset[str]]
    """The columns of each unique index."""
    primary_key: frozenset[str]


def names_in(table: str) -> tuple[str, ...]:
    """The schema, if there is one, and the table. Raises ConfigError for an invalid name."""
    names = tuple(table.split("."))
    if not 1 <= len(names) <= 2 or not all(names) or "\x00" in table:
        raise ConfigError(f"{table!r} is not the name of a table: write TABLE or SCHEMA.TABLE")
    return names


def quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def upsert_tail(columns: Iterable[str], key: Iterable[str]) -> str:
    """The end of an INSERT whose rows replace those with the same key."""
    keys = tuple(key)
    if not keys:
        return ""
    others = [name for name in columns if name not in keys]
    if not others:
        return f" ON CONFLICT ({listed(keys)}) DO NOTHING"
    changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
    return f" ON CONFLICT ({listed(keys)}) DO UPDATE SET {changes}"


def affinity_of(declared: str) -> str:
    """The affinity of a declared type, by SQLite's rules in their order."""
    text = declared.upper()
    if "INT" in text:
        return "INTEGER"
    if any(part in text for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not text or "BLOB" in text:
        return "BLOB"
    return "REAL" if any(part in text for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def describe_postgres(execute: Execute, table: Sequence[str]) -> ExistingTable | None:
    """The table of this name in PostgreSQL; None if it does not exist."""
    name = quoted(*table)
    if execute("SELECT to_regclass(%s)::oid", (name,))[0][0] is None:
        return None
    columns = execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '', "
        "atthasdef OR attidentity <> '' "
        "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (name,),
    )
    unique = execute(
        "SELECT array_agg(a.attname::text), i.indisprimary FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) "  # without INCLUDEd columns
        "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL "
        "AND i.indexprs IS NULL AND i.indisvalid GROUP BY i.indexrelid, i.indisprimary",
        (name,),
    )
    return ExistingTable(
        {name: ExistingColumn(name, declared, needed, filled) for name, declared, needed, filled in columns},
        frozenset(frozenset(names) for names, _ in unique),
        frozenset(name for names, is_primary in unique if is_primary for name in names),
    )


def describe_sqlite(execute: Execute, table: Sequence[str]) -> ExistingTable | None:
    """The table of this name in SQLite; None if it does not exist."""

    def pragma(which: str, name: str) -> list[tuple[Any, ...]]:
        schema = f"{quoted(*table[:-1])}." if len(table) > 1 else ""
        return execute(f"PRAGMA {schema}{which}({quoted(name)})", None)

    # Of each column: number, name, type, NOT NULL, default, and its position in the primary key.
    rows = pragma("table_info", table[-1])
    if not rows:
        return None
    keys = [row for row in rows if row[5]]
    numbered = keys[0][1] if len(keys) == 1 and keys[0][2].upper() == "INTEGER" else None  # by SQLite itself
    columns = {
        row[1]: ExistingColumn(
            row[1], row[2], bool(row[3] or row[5]) and row[4] is None and row[1] != numbered, row[4] is not None
        )
        for row in rows
    }
    primary_key = frozenset(row[1] for row in keys)
    unique = {primary_key}
    for _, index, is_unique, _, is_partial in pragma("index_list", table[-1]):
        if is_unique and not is_partial:
            names = [part[2] for part in pragma("index_info", index)]
            if None not in names:  # an index over an expression
                unique.add(frozenset(names))
    return ExistingTable(columns, frozenset(unique), primary_key)
