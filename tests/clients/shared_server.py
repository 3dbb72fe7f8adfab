"""One expensive server for all workers of a test run: who needs it first starts it, and stops it when all are done."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tests.servers import Server

LAST_USER_TIMEOUT_S: Final = 1200.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server that another process has started."""

    port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def shared(folder: Path, start: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """The server of all processes that name this folder.

    The process that started it stays until nobody uses it any more, because the server ends with that process. Every
    user holds a shared lock on one file; who gets that lock for itself alone is the last. A second lock is held while
    somebody starts or stops it. Both fall with their process, however it ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "port.txt"
    with open(folder / "users.lock", "w") as users:
        with _locked(folder):
            fcntl.flock(users, fcntl.LOCK_SH)
            if address.exists():
                running = None
                server: Server = ServerAddress(int(address.read_text("ascii")))
            else:
                running = start()
                server = running.__enter__()
                address.write_text(str(server.port), "ascii")
        try:
            yield server
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            if running is not None:
                with _until_last(folder, users, LAST_USER_TIMEOUT_S):
                    address.unlink()
                    running.__exit__(None, None, None)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / "starting.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _until_last(folder: Path, users: IO[str], timeout_s: float) -> Iterator[None]:
    """Wait for the others to finish; the block runs while nobody uses the server and nobody can begin to."""
    deadline = time.monotonic() + timeout_s
    while True:
        with _locked(folder):
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline, "somebody still uses the server"
            else:
                yield
                return
        time.sleep(0.1)
