"""SQL databases: SQLite (`sqlite`) and PostgreSQL (`postgres`), for every room that keeps something in tables.

A room brings its statements and, for tables of its own, a `Schema`. It gets connections that are checked, reopened
after they broke and safe to use from many threads, and errors that say what to do. The modules are imported where they
are needed, because PostgreSQL is an extra.
"""

from __future__ import annotations

from penstock.databases.schema import Schema

__all__ = ["Schema"]
