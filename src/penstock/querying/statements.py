"""What may be run, and which topics it reads: DuckDB's own parser tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from penstock.errors import QueryError

LATEST: Final = "latest"
_ALLOWED: Final = "SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE, EXPLAIN and SHOW TABLES"
_EXPLAIN: Final = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*explain\s+(?:analyze\s+)?(?:\([^)]*\)\s*)?", re.IGNORECASE | re.DOTALL
)
_SYSTEM: Final = ("information_schema", "pg_catalog")
_ABOUT: Final = ("partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Statement:
    """A query that may be run."""

    text: str
    tables: tuple[tuple[str, ...], ...]
    """The tables that it names, each as the parts of its name."""
    latest: tuple[str, ...]
    """The topics whose latest rows it reads."""
    lists_topics: bool
    """Whether it is SHOW TABLES."""
    may_filter: bool
    """Whether it may have a filter on the partition, offset or timestamp of records."""
    names: frozenset[str]
    """The names in it that may be columns, in lower case. What `*` stands for is not among them."""


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Statement:
    """Raises QueryError for what is not one statement that only reads topics."""
    try:
        statements = connection.extract_statements(text)
    except duckdb.ParserException as error:
        raise QueryError(plain(error) + _keyword_hint(text)) from error
    if not statements:
        raise QueryError('the query is empty: write one such as select count(*) from "TOPIC"')
    if len(statements) > 1:
        raise QueryError(f"these are {len(statements)} statements: run one at a time")
    kind = statements[0].type.name
    body = _EXPLAIN.sub("", text, count=1) if kind == "EXPLAIN" else text
    if kind not in ("SELECT", "EXPLAIN"):
        raise QueryError(f"{_shown(kind)} is not allowed: queries only read topics, by {_ALLOWED}")
    found = connection.execute("select json_serialize_sql(?::varchar)", [body]).fetchall()
    tree = json.loads(found[0][0])
    if tree.get("error"):
        raise QueryError(f"this is not allowed: queries only read topics, by {_ALLOWED}")
    return _statement(text, tree)


def plain(error: duckdb.Error) -> str:
    """What DuckDB says, without the name of the error's class."""
    return re.sub(r"^[A-Za-z ]+ Error: ", "", str(error)).strip()


def _keyword_hint(text: str) -> str:
    if re.search(r'(?<!")\boffset\b(?!")', text, re.IGNORECASE):
        return '\nOFFSET is a keyword of SQL: write the column as "offset".'
    if re.search(r"\b(?:from|join)\s+[\w.]+-", text, re.IGNORECASE):
        return '\nWrite topics whose names contain dashes or dots in double quotes: "my-topic".'
    return ""


def _shown(kind: str) -> str:
    return {"MULTI": "PIVOT"}.get(kind, kind)


def _statement(text: str, tree: Any) -> Statement:
    nodes = list(_nodes(tree))
    local = {entry["key"].lower() for node in nodes for entry in _ctes(node)}
    tables: dict[tuple[str, ...], None] = {}
    latest: dict[str, None] = {}
    names: set[str] = set()
    lists_topics = filters = False
    for node in nodes:
        kind = node.get("type")
        if kind == "BASE_TABLE":
            parts = tuple(part for part in (node["catalog_name"], node["schema_name"], node["table_name"]) if part)
            if not (len(parts) == 1 and parts[0].lower() in local) and parts[0].lower() not in _SYSTEM:
                tables[parts] = None
        elif kind == "SHOW_REF" and node.get("show_type") == "SHOW_SPECIAL":
            lists_topics = True
        elif kind == "TABLE_FUNCTION" and node["function"]["function_name"].lower() == LATEST:
            latest[_topic_of(node["function"]["arguments"])] = None
        elif kind == "COLUMN_REF":
            names.update(part.lower() for part in node["column_names"])
        filters = filters or bool(node.get("where_clause") or node.get("condition") or node.get("having"))
    names_about = any(name.removeprefix("record_") in _ABOUT for name in names)
    return Statement(text, tuple(tables), tuple(latest), lists_topics, filters and names_about, frozenset(names))


def _topic_of(arguments: Sequence[Any]) -> str:
    if len(arguments) == 1:
        literal = arguments[0]["expression"].get("literal") or {}
        if literal.get("kind") == "STRING":
            return str(literal["text"])
    raise QueryError("latest takes the name of a topic in single quotes: latest('users')")


def _ctes(node: Any) -> Sequence[Any]:
    held = node.get("cte_map")
    return held["map"] if isinstance(held, dict) else ()


def _nodes(tree: Any) -> Iterator[Any]:
    """Every object of the tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
