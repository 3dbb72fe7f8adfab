"""A table over HTTP: rows by key and by index, and whether the table is fresh."""

from __future__ import annotations

import urllib.parse
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import ConfigError, PenstockError
from penstock.model.json_server import JsonAnswer, JsonServer
from penstock.tables.changes import plain_value

if TYPE_CHECKING:
    from penstock.tables.table.table import Table

_MOST_ROWS: Final = 1_000
"""The rows of an answer, unless `limit` asks for fewer."""


class TableServer(JsonServer):
    """Answers requests about one table, until it or the table is closed."""

    def __init__(self, table: Table[Any], address: str, *, insecure: bool = False) -> None:
        super().__init__(
            lambda target, headers: JsonAnswer(*answer(table, target)),
            address,
            what="the table",
            exposes="read its rows",
            allow="pass insecure=True",
            insecure=insecure,
            encode_other=plain_value,
        )


Answer = tuple[HTTPStatus, Any]


def answer(table: Table[Any], target: str) -> Answer:
    """The answer to GET of this path and query."""
    path, _, query = target.partition("?")
    try:
        if path == "/healthz":
            return _health(table, ready=False)
        if path == "/readyz":
            return _health(table, ready=True)
        if not table.progress.is_caught_up:
            problem = table.progress.problem
            return HTTPStatus.SERVICE_UNAVAILABLE, {
                "error": problem or "the table has not caught up with its topic yet"
            }
        if path not in ("", "/"):
            return _row(table, urllib.parse.unquote(path[1:], errors="strict"))
        return _rows(table, query) if query else (HTTPStatus.OK, _about(table))
    except UnicodeDecodeError:
        return HTTPStatus.BAD_REQUEST, {"error": "the path is not UTF-8"}
    except ConfigError as error:
        return HTTPStatus.BAD_REQUEST, {"error": str(error)}
    except PenstockError as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}


def _health(table: Table[Any], *, ready: bool) -> Answer:
    progress = table.progress
    problems = [] if progress.problem is None else [progress.problem]
    if ready and not progress.is_caught_up:
        problems.append("the table has not caught up with its topic yet")
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, {"status": "unavailable" if problems else "ok", "problems": problems}


def _about(table: Table[Any]) -> dict[str, Any]:
    progress = table.progress
    pointers = {str(partition): str(pointer) for partition, pointer in progress.pointers.items()}
    return {"topic": table.topic.name, "rows": progress.rows, "pointers": pointers, "indexes": table.index_names}


def _row(table: Table[Any], text: str) -> Answer:
    for key in table.key_of_text(text):
        try:
            return HTTPStatus.OK, table[key]
        except KeyError:
            continue
    return HTTPStatus.NOT_FOUND, {"error": f"there is no row with the key {text!r}"}


def _rows(table: Table[Any], query: str) -> Answer:
    asked = urllib.parse.parse_qsl(query, keep_blank_values=True)
    limits = [value for name, value in asked if name == "limit" and name not in table.index_names]
    if any(not limit.isdigit() for limit in limits):
        raise ConfigError("limit must be an integer >= 0")
    limit = min([_MOST_ROWS, *map(int, limits)])
    wanted = [(name, value) for name, value in asked if name in table.index_names or name != "limit"]
    if len(wanted) != 1:
        raise ConfigError("ask for one index: /?INDEX=VALUE, and perhaps &limit=100")
    [(index, text)] = wanted
    found: dict[Any, Any] = {}
    for value in (text, *_json_values(text)):
        found.update(table.by(index, value))
    rows = [{"key": key, "row": row} for key, row in list(found.items())[:limit]]
    return HTTPStatus.OK, {"rows": rows, "total": len(found)}


def _json_values(text: str) -> list[Any]:
    """Numbers, booleans and null, as a URL can write them."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
    return [] if isinstance(value, str | list | dict) else [value]
