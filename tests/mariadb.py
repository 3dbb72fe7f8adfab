"""A real MariaDB with a row binlog on loopback, in a process that the test owns.

The server refuses to run as root; then it runs as nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pymysql

from tests import real_parts
from tests.postgres import as_who_may, user_who_may
from tests.servers import START_TIMEOUT_S, ServerError, ServerProcess, free_ports, wait_for_start

QUICK: Final = {
    "innodb_flush_log_at_trx_commit": "2",
    "innodb_buffer_pool_size": "64M",
    "innodb_log_file_size": "32M",
    "performance_schema": "OFF",
    "max_connections": "200",
}
"""For tests that kill clients, not machines."""
BINLOG: Final = {
    "log_bin": "b",
    "server_id": "1",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "binlog_row_image": "FULL",
}


class MariadbServer:
    """One MariaDB in a folder of its own; root has no password."""

    def __init__(self, settings: dict[str, str | None] | None = None) -> None:
        """A setting that is None is left out."""
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-mariadb-"))
        (self.port,) = free_ports(1)
        self._install, self._server = real_parts.mariadb_programs()
        self.settings: dict[str, str | None] = {**QUICK, **BINLOG, **(settings or {})}
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """Without a database."""
        return f"mariadb://root@127.0.0.1:{self.port}"

    def connect(self, database: str | None = None, user: str = "root", password: str = "") -> Any:
        """A connection in autocommit."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            password=password,
            database=database,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=5,
        )

    def start(self) -> None:
        """Start on the folder, and on the port of the first start; returns when it answers."""
        data = self.folder / "data"
        if not data.exists():
            self._make(data)
        place = {
            "datadir": str(data),
            "bind_address": "127.0.0.1",
            "port": str(self.port),
            "socket": str(self.folder / "socket"),
            "pid_file": str(self.folder / "pid"),
        }
        settings = [f"--{name}={value}" for name, value in {**place, **self.settings}.items() if value is not None]
        command = [*as_who_may(), self._server, "--no-defaults", *settings]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, self._answers)

    def kill(self) -> None:
        """SIGKILL: what a crash of the server is."""
        assert self._process is not None, "MariaDB has not been started"
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None and self._process.is_alive():
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make(self, data: Path) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, user_who_may())
        options = ("--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db")
        command = [*as_who_may(), self._install, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False, cwd="/")
        if done.returncode != 0:
            raise ServerError(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True


@functools.cache
def shared_mariadb() -> MariadbServer:
    """The MariaDB of this test process: started when it is first needed, killed by the kernel with this process.

    Tests share it, so each keeps to a database of its own, and none stops it.
    """
    server = MariadbServer()
    atexit.register(server.stop)
    server.start()
    return server


@contextlib.contextmanager
def fresh_database(name: str, server: MariadbServer | None = None) -> Iterator[str]:
    """The URL of a new database."""
    server = server or shared_mariadb()
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield f"{server.url}/{name}"
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")
