"""The tables of a PostgreSQL database that keeps checkpoints.

The names of all of them begin with `penstock_`, as the database may be the user's own, with tables of theirs in it.
They are made in the first schema of the search path.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import ConfigError

SCHEMA_VERSION: Final = 1
SET_UP_LOCK: Final = 0x70656E73746F636B
"""The advisory lock under which tables are made: `CREATE TABLE IF NOT EXISTS` alone may fail when two do it at once."""

TABLES: Final = (
    "CREATE TABLE penstock_schema (version integer NOT NULL)",
    # Rows that change all the time get room to change within their page, which spares the indexes.
    """CREATE TABLE penstock_lease (
        "group" text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, owner text NOT NULL,
        epoch bigint NOT NULL, beat bigint NOT NULL, PRIMARY KEY ("group", name)) WITH (fillfactor = 50)""",
    # The highest epoch that a group had when it was forgotten: should it come back, no old owner must fit again.
    'CREATE TABLE penstock_forgotten ("group" text COLLATE "C" PRIMARY KEY, epoch bigint NOT NULL)',
    """CREATE TABLE penstock_checkpoint (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        "group" text COLLATE "C" NOT NULL, topic text COLLATE "C" NOT NULL, partition integer NOT NULL,
        data bytea NOT NULL, UNIQUE ("group", topic, partition)) WITH (fillfactor = 50)""",
    # It is compressed already.
    "ALTER TABLE penstock_checkpoint ALTER COLUMN data SET STORAGE EXTERNAL",
    """CREATE TABLE penstock_happening (
        checkpoint bigint NOT NULL, line bigint GENERATED ALWAYS AS IDENTITY, first numeric NOT NULL,
        "end" numeric NOT NULL, status text NOT NULL, attempt bigint NOT NULL, error text NOT NULL,
        begun_ms bigint NOT NULL, ended_ms bigint NOT NULL, owner text NOT NULL, handler text NOT NULL,
        PRIMARY KEY (checkpoint, line))""",
    "CREATE INDEX penstock_happening_ended ON penstock_happening (checkpoint, ended_ms)",
    """CREATE TABLE penstock_state (
        checkpoint bigint NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (checkpoint, key))""",
    # Keys are kept as UTF-8 bytes, as PostgreSQL's text has no NUL.
    """CREATE TABLE penstock_handled (
        "group" text COLLATE "C" NOT NULL, topic text COLLATE "C" NOT NULL, id bytea NOT NULL, at_ms bigint NOT NULL,
        PRIMARY KEY ("group", topic, id))""",
    'CREATE INDEX penstock_handled_at ON penstock_handled ("group", topic, at_ms)',
)

# Not to_regclass(), which may still say no when another's table was committed a moment ago.
HAS_TABLES: Final = (
    "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = 'penstock_schema'"
)


def make_tables(connection: Any, where: str) -> None:
    """Make the tables where there are none. Many processes may do this at once."""
    if _version(connection, where) is not None:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SET_UP_LOCK,))
        if _version(connection, where) is None:  # nobody else was quicker
            for statement in TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO penstock_schema VALUES (%s)", (SCHEMA_VERSION,))


def _version(connection: Any, where: str) -> int | None:
    """The version of the tables that are there; None when there are none. ConfigError when they are not ours."""
    if not connection.execute(HAS_TABLES).fetchall():
        return None
    rows = connection.execute("SELECT version FROM penstock_schema").fetchall()
    if rows != [(SCHEMA_VERSION,)]:
        raise ConfigError(
            f"{where} holds checkpoints of version {', '.join(str(row[0]) for row in rows) or 'unknown'}, and this "
            f"program knows version {SCHEMA_VERSION} only: run the newer Penstock that made them, or choose another "
            "database or search path"
        )
    return SCHEMA_VERSION
