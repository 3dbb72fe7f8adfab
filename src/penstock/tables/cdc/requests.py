"""Requests to a running capture: read all rows of a table again, while its changes go on."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from typing import Final

from penstock.abc import Stream
from penstock.errors import ConfigError, UnknownTopicError
from penstock.streams.key_value_topic import Changes, KeyValueTopic, Values
from penstock.tables.cdc.delivery import state_topic
from penstock.tables.cdc.reports import REQUESTS
from penstock.tables.cdc.source import LEFT, saved_tables

_EVERY_S: Final = 2.0
_POLL_S: Final = 0.2
_REFUSED: Final = b"refused: "
"""Before the reason, in place of the id of a request."""


def request_snapshot(stream: Stream, name: str, table: str) -> Callable[[], bool]:
    """Ask the capture with this name to read a table again, now or when it runs next.

    Returns a function that says whether that is done; it raises ConfigError if the capture cannot do it. Raises
    ConfigError if there is no such capture or table.
    """
    tables = saved_tables(KeyValueTopic(stream, state_topic(name)).read())
    known = [each for each, saved in tables.items() if saved.snapshot != LEFT]
    if not known:
        raise ConfigError(f"{stream.url} has no capture of the name {name!r} that follows changes")
    found = [each for each in known if table in (each, each.partition(".")[2])]
    if len(found) != 1:
        problem = "is in several schemas: write SCHEMA.TABLE" if found else "is not captured"
        raise ConfigError(f"table {table!r} {problem}: the capture {name!r} has {', '.join(sorted(known))}")
    key, request = f"{name}/{found[0]}", uuid.uuid4().hex
    requests = KeyValueTopic(stream, REQUESTS)
    requests.change(lambda _: {key: request.encode()})

    def is_done() -> bool:
        found = requests.read().get(key)
        if found is not None and found.startswith(_REFUSED):
            raise ConfigError(f"table {table!r} is not read again: {found.removeprefix(_REFUSED).decode()}")
        return found != request.encode()

    return is_done


def wait_until_done(is_done: Callable[[], bool]) -> None:
    """Return once a request is done."""
    while not is_done():
        time.sleep(_POLL_S)


class RequestReader:
    """The requests to one capture. Used by its thread."""

    def __init__(self, stream: Stream, name: str) -> None:
        self._prefix = f"{name}/"
        self._values = KeyValueTopic(stream, REQUESTS)
        self._opened = stream.open_topic(REQUESTS)
        self._end = 0
        self._known: dict[str, str] = {}
        self._due_s = 0.0

    def open(self) -> dict[str, str]:
        """The id of the request for each table, looked up every few seconds; none in between."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return {}
        self._due_s = now_s + _EVERY_S
        try:
            _, end = self._opened.span(0)
        except UnknownTopicError:  # it was deleted; the next request creates it
            self._end, self._known = 0, {}
            return {}
        if end != self._end:
            self._end = end
            self._known = {
                key.removeprefix(self._prefix): value.decode()
                for key, value in self._values.read().items()
                if key.startswith(self._prefix) and not value.startswith(_REFUSED)
            }
        return dict(self._known)

    def close_request(self, table: str, request: str, refused: str | None = None) -> None:
        """It is done or refused, unless another one was made since."""
        key = self._prefix + table
        value = None if refused is None else _REFUSED + refused.encode()

        def removed(known: Values) -> Changes:
            return {key: value} if known.get(key) == request.encode() else {}

        self._values.change(removed)
        self._known.pop(table, None)

    def close(self) -> None:
        with contextlib.closing(self._opened):
            self._known = {}
