"""When a target last had everything of its topic: after too long, deletions may be gone that it never saw."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from penstock.abc import CheckpointStore, Stream, TopicStream
from penstock.databases import Schema
from penstock.databases.sqlite import SqliteDatabase
from penstock.errors import ChangesLostError, PenstockError
from penstock.model import Pointer
from penstock.model.clock import SystemClock
from penstock.model.text import duration_text
from penstock.tables.table.following import milliseconds_in, settings_of

logger = logging.getLogger(__name__)

_LOOK_S: Final = 30.0
_SCHEMA: Final = Schema(
    "appliers",
    1,
    "penstock_appliers_schema",
    ("CREATE TABLE penstock_appliers (applier text PRIMARY KEY, fresh_ms bigint NOT NULL)",),
)
_READ: Final = "SELECT fresh_ms FROM penstock_appliers WHERE applier = ?"
_WRITE: Final = (
    "INSERT INTO penstock_appliers (applier, fresh_ms) VALUES (?, ?) ON CONFLICT (applier) DO UPDATE "
    "SET fresh_ms = excluded.fresh_ms WHERE excluded.fresh_ms > penstock_appliers.fresh_ms"
)


class FreshnessStore(Protocol):
    """In the target, beside the pointers. Used by one thread at a time."""

    def load(self, applier: str) -> int | None: ...

    def save(self, applier: str, fresh_ms: int) -> None:
        """Unless a later time is saved."""

    def close(self) -> None: ...


class Freshness:
    """Knows until when a target has everything: all records that were in the topic at that time are applied."""

    def __init__(
        self, stream: Stream, topic: TopicStream, group: str, checkpoints: CheckpointStore, store: FreshnessStore
    ) -> None:
        self._topic = topic
        self._group = group
        self._checkpoints = checkpoints
        self._store = store
        self._now_ms: Callable[[], int] = SystemClock().wall_ms
        settings = settings_of(stream, topic.topic)
        is_compacted = "compact" in (settings.get("cleanup.policy") or "")
        self._retention_ms = milliseconds_in(settings, "delete.retention.ms") if is_compacted else None
        self._seen: tuple[int, Mapping[int, Pointer]] | None = None
        """Where the topic ended at that time, until everything before is applied."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, *, accept_loss: bool) -> None:
        """Raise ChangesLostError if deletions may be gone that are not applied, then watch until `stop`."""
        self._look()
        if not accept_loss:
            self._check()
        self._thread = threading.Thread(target=self._watch, name=f"penstock-fresh-{self._group}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Save until when the target is fresh, if that is known."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._look_again()

    def _check(self) -> None:
        fresh_ms = self._store.load(self._group)
        assert self._seen is not None, "it was just seen"
        now_ms, ends = self._seen
        applied = self._applied()
        if fresh_ms is None or not applied or self._retention_ms is None:
            return
        is_behind = any(applied.get(each, -1) < end for each, end in ends.items())
        if is_behind and now_ms - fresh_ms > self._retention_ms:
            raise ChangesLostError(
                f"topic {self._topic.topic!r} was applied completely {duration_text((now_ms - fresh_ms) / 1000)} ago, "
                f"and keeps deletions for {duration_text(self._retention_ms / 1000)} (delete.retention.ms): rows that "
                "were deleted since may stay in the target for ever. Continue once with --continue-after-loss, and "
                "when all is applied, remove them with `penstock cdc compare --repair`; to prevent it, raise "
                "delete.retention.ms of the topic"
            )

    def _applied(self) -> dict[int, Pointer]:
        found = self._checkpoints.checkpoints(self._group)
        return {key.partition: each.start for key, each in found.items() if key.topic == self._topic.topic}

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look_again()

    def _look_again(self) -> None:
        try:
            self._look()
        except PenstockError as error:  # the applier itself meets it too, and says so
            logger.debug("whether the target of %r is fresh is not known: %s", self._group, error)

    def _look(self) -> None:
        if self._seen is not None:
            at_ms, ends = self._seen
            applied = self._applied()
            if any(applied.get(each, -1) < end for each, end in ends.items() if end > 0):
                return
            self._store.save(self._group, at_ms)
        now_ms = self._now_ms()  # before the ends, which may move on
        self._seen = now_ms, {each: self._topic.span(each)[1] for each in self._topic.partitions()}


def open_freshness_store(url: str, *, is_sqlite: bool) -> FreshnessStore:
    return _Sqlite(url.partition(":")[2].partition("?")[0]) if is_sqlite else _Postgres(url)


class _Sqlite:
    def __init__(self, path: str) -> None:
        self._database: SqliteDatabase[Any] = SqliteDatabase(path, _SCHEMA, synchronous="FULL")

    def load(self, applier: str) -> int | None:
        rows = self._database.read(_READ, (applier,))
        return int(rows[0][0]) if rows else None

    def save(self, applier: str, fresh_ms: int) -> None:
        with self._database.transaction() as cursor:
            cursor.execute(_WRITE, (applier, fresh_ms))

    def close(self) -> None:
        self._database.close()


class _Postgres:
    def __init__(self, url: str) -> None:
        from penstock.databases.postgres import PostgresPool, make_tables  # needs an extra

        self._pool: PostgresPool[Any] = PostgresPool(url, _SCHEMA.what, size=1)
        try:
            make_tables(self._pool, _SCHEMA)
        except BaseException:
            self._pool.close()
            raise

    def load(self, applier: str) -> int | None:
        rows = self._pool.execute(_READ.replace("?", "%s"), (applier,))
        return int(rows[0][0]) if rows else None

    def save(self, applier: str, fresh_ms: int) -> None:
        self._pool.execute(_WRITE.replace("?", "%s") + " RETURNING 1", (applier, fresh_ms))

    def close(self) -> None:
        self._pool.close()
