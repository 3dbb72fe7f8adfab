"""What tests of captures from MariaDB share: a connection, and a capture in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from penstock.tables import Capture
from penstock.tables.cdc.mysql.changes import file_number
from tests.mariadb import MariadbServer, shared_mariadb
from tests.tables.captured import wait_until


class Database:
    """A connection that runs statements, and tells where the binlog ends."""

    def __init__(self, url: str, server: MariadbServer | None = None) -> None:
        self.name = url.rpartition("/")[2]
        self._connection = (server or shared_mariadb()).connect(self.name)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last one."""
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def place(self) -> tuple[int, int]:
        (row,) = self.run("SHOW MASTER STATUS")
        return file_number(row[0]), row[1]

    def close(self) -> None:
        self._connection.close()


class Running:
    """A capture in a thread."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:
            self.error = error

    def wait_for(self, database: Database) -> None:
        """Wait until everything that is committed now is stored in the stream."""
        end = database.place()
        wait_until(lambda: self._is_over() or self.capture.progress.phase == "streaming", "the snapshot is done")
        wait_until(lambda: self._is_over() or self._place() >= end, "everything is captured")
        if self.error is not None:
            raise self.error

    def _place(self) -> tuple[int, int]:
        file, _, position = self.capture.progress.position.partition(":")
        return file_number(file), int(position or 0)

    def wait_for_end(self) -> BaseException | None:
        wait_until(self._is_over, "the capture ends")
        return self.error

    def stop(self) -> None:
        self.capture.close()
        self._thread.join()

    def _is_over(self) -> bool:
        return not self._thread.is_alive()


@contextlib.contextmanager
def running(url: str, stream: str, *tables: str, **options: Any) -> Iterator[Running]:
    started = Running(Capture(url, stream, tables=tables, heartbeat_s=0.1, **options))
    try:
        yield started
    finally:
        started.stop()
