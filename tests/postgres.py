"""A real PostgreSQL on loopback, in a process that the test owns.

The server refuses to run as root; then it runs as the user that its package made, or as nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from tests import real_parts
from tests.servers import START_TIMEOUT_S, ServerError, ServerProcess, free_ports, wait_for_start

QUICK: Final = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
"""For tests that kill clients, not machines."""
USERS: Final = ("postgres", "nobody")


class PostgresServer:
    """One PostgreSQL in a folder of its own; whoever connects is believed."""

    def __init__(self, settings: dict[str, str] | None = None, host: str = "127.0.0.1") -> None:
        self.host = host
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        (self.port,) = free_ports(1)
        self._programs = real_parts.postgres_programs()
        self.settings = {**QUICK, **(settings or {})}
        self._process: ServerProcess | None = None
        self._schemas = itertools.count(1)

    @property
    def url(self) -> str:
        """The database that every server has."""
        return f"postgresql://penstock@{self.host}:{self.port}/postgres"

    def fresh_database(self) -> str:
        """The URL of a place where no table is: a new schema, which takes less time than a new database."""
        name = f"test_{next(self._schemas)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}?options=-csearch_path%3D{name}"

    def start(self) -> None:
        """Start on the folder, and on the port of the first start; returns when it answers."""
        data = self.folder / "data"
        if not data.exists():
            self._make(data)
        place = {"listen_addresses": self.host, "port": str(self.port), "unix_socket_directories": ""}
        settings = [f"-c{name}={value}" for name, value in {**place, **self.settings}.items()]
        command = [*as_who_may(), str(self._programs / "postgres"), "-D", str(data), *settings]
        self._process = ServerProcess(command, self.folder / "output.txt")
        wait_for_start(self._process, self._answers)

    def kill(self) -> None:
        """SIGKILL to all its processes: what a crash of the machine is, but for the disk.

        Those that serve clients are in sessions of their own. By themselves they end soon after the first one, but may
        answer once more before.
        """
        assert self._process is not None, "PostgreSQL has not been started"
        serving = children_of(self._process.pid)
        self._process.kill()
        for pid in serving:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

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
        options = ("--no-sync", "--auth=trust", "--username=penstock", "--encoding=UTF8", "--locale=C")
        command = [*as_who_may(), str(self._programs / "initdb"), "-D", str(data), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False, cwd="/")
        if done.returncode != 0:
            raise ServerError(f"initdb failed:\n{done.stdout}{done.stderr}")
        with (data / "pg_hba.conf").open("a") as file:  # others than those of this machine
            file.write("host all all samenet trust\n")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@functools.cache
def shared_postgres() -> PostgresServer:
    """The PostgreSQL of this test process: started when it is first needed, killed by the kernel with this process.

    Tests share it, so each keeps to a database or a group of its own, and none stops it.
    """
    server = PostgresServer()
    atexit.register(server.stop)
    server.start()
    return server


def children_of(pid: int) -> list[int]:
    """The processes that this one has started and that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def as_who_may() -> list[str]:
    """What to put before a command, so that it does not run as root, and still dies with its parent."""
    if os.geteuid() != 0:
        return []
    user = user_who_may()
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", "--pdeathsig=KILL"]


def user_who_may() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(user for user in USERS if user in known)
