"""SQL queries of pages: limited in rows, memory, time and number, and ended with the page."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.console.link import Link
from penstock.console.views import QueryAnswer
from penstock.errors import ConfigError
from penstock.serde import Topic

if TYPE_CHECKING:
    from penstock.querying.database import TopicDatabase

MOST_ROWS: Final = 1_000
TIMEOUT_S: Final = 30.0
MEMORY: Final = "512MB"
THREADS: Final = 2
AT_ONCE: Final = 3
LONGEST_CELL: Final = 2_000


class Query:
    """The queries of one page. Any thread may `cancel`."""

    def __init__(
        self,
        link: Link,
        url: str,
        places: threading.Semaphore,
        types: Sequence[Topic[Any]],
        registry: str | None,
        cache_bytes: int | None,
    ) -> None:
        self._link = link
        self._url = url
        self._places = places
        self._types = types
        self._registry = registry
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._running: TopicDatabase | None = None
        self._is_closed = False

    def run(self, text: str) -> QueryAnswer:
        """The first rows of the answer to a query. Raises QueryError, UnknownTopicError, QueryStoppedError, and
        ConfigError if too many queries are running."""
        from penstock.querying.cells import cell_text, is_number, rows_of
        from penstock.querying.database import TopicDatabase

        if not self._places.acquire(blocking=False):
            raise ConfigError(f"{AT_ONCE} queries are running already: wait until one has ended")
        try:
            with TopicDatabase(
                self._link.connection(),
                self._url,
                types=self._types,
                registry=self._registry,
                timeout_s=TIMEOUT_S,
                memory_limit=MEMORY,
                threads=THREADS,
                cache_bytes=self._cache_bytes,
            ) as database:
                with self._lock:
                    if self._is_closed or self._running is not None:
                        raise ConfigError("this page runs a query already, or is closed")
                    self._running = database
                try:
                    result = database.run(text, limit=MOST_ROWS)
                finally:
                    with self._lock:
                        self._running = None
        finally:
            self._places.release()
        fields = list(enumerate(result.table.schema))
        return QueryAnswer(
            tuple(result.table.column_names),
            frozenset(index for index, field in fields if is_number(field.type)),
            [tuple(None if cell is None else _cut(cell_text(cell)) for cell in row) for row in rows_of(result.table)],
            result.is_cut,
            result.records_read,
            result.records_cached,
            result.took_s,
            tuple(result.warnings),
        )

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def cancel(self) -> None:
        """End the running query, if there is one, with a QueryStoppedError."""
        with self._lock:
            if self._running is not None:
                self._running.cancel()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self.cancel()


class Queries:
    """The queries of all pages."""

    def __init__(
        self,
        link: Link,
        url: str,
        *,
        types: Sequence[Topic[Any]] = (),
        registry: str | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """`cache_bytes` is that of `penstock.sql`."""
        self._link = link
        self._url = url
        self._types = types
        self._registry = registry
        self._cache_bytes = cache_bytes
        self._places = threading.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._open: list[Query] = []

    def open(self) -> Query:
        query = Query(self._link, self._url, self._places, self._types, self._registry, self._cache_bytes)
        with self._lock:
            self._open = [each for each in self._open if not each.is_closed]
            self._open.append(query)
        return query

    def close(self) -> None:
        with contextlib.ExitStack() as stack, self._lock:
            for query in self._open:
                stack.callback(query.close)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]} …"
