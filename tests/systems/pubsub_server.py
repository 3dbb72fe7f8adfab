"""Google's own fake of Pub/Sub on loopback, in a process that the test owns. It keeps everything in memory."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests import real_parts
from tests.servers import ServerProcess, free_ports, wait_for_start
from tools import parts

MODULE: Final = re.compile(r"cloud\.google\.com/go/pubsub/v2 v([\d.]+)")


class PubsubServer:
    """pstest of the Go module cloud.google.com/go/pubsub/v2, as a server."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self._process: ServerProcess | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        found = MODULE.search((parts.PUBSUB_MODULE / "go.mod").read_text("utf-8"))
        return found[1] if found else "unknown"

    def __enter__(self) -> Self:
        command = [str(real_parts.pubsub_server()), "-listen", self.address]
        self._process = process = ServerProcess(command, self.folder / "output.txt")
        try:
            wait_for_start(process, lambda: "listening on" in process.output())
        except BaseException:
            process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
