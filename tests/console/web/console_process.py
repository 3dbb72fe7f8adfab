"""The console as its users start it: `penstock console`, in a process of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.servers import ServerProcess, wait_for_start

ANNOUNCEMENT: Final = re.compile(r"^penstock: the console is at (?P<address>http://\S+)", re.MULTILINE)


class ConsoleProcess:
    """A console on a free port. Its state is kept in the folder, so a second one there goes on with it."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._command = [sys.executable, "-m", "penstock.cli", "console", "--url", url, "--listen", "127.0.0.1:0"]
        self._command += ["--state", str(folder / "state"), *arguments]
        self._process: ServerProcess | None = None
        self.address = ""

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "the console has not been started"
        return self._process

    def start(self) -> None:
        self._process = ServerProcess(self._command, self.folder / "output.txt")
        wait_for_start(self._process, lambda: self._announced() is not None)
        announced = self._announced()
        assert announced is not None
        self.address = announced["address"]

    def _announced(self) -> re.Match[str] | None:
        return ANNOUNCEMENT.search(self.process.output())

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            if self._process is not None:
                self._process.terminate()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
