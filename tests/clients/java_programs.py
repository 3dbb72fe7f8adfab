"""Java programs, ours in `java/` and Kafka's own tools, run one after the other in one JVM."""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests import real_parts
from tests.servers import QUICK_START, Server, java_command

TIMEOUT_S: Final = 240.0
SOURCES: Final = Path(__file__).parent / "java"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended, and what it printed."""

    failed: bool
    printed: str


class JavaPrograms:
    """The programs, compiled into a folder, and a JVM that runs them: most of a program's time would be its start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        javac = Path(real_parts.java_with_compiler()).resolve().with_name("javac")
        sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
        command = [str(javac), "-cp", real_parts.kafka_class_path(), "-d", str(self.folder), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        with (self.folder / "errors.txt").open("w") as errors:
            self._process = subprocess.Popen(
                self.command("Programs"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def command(self, program: str, *arguments: str) -> list[str]:
        """What starts one of the programs in a JVM of its own."""
        *options, class_path = java_command(*QUICK_START, "-Xmx256m")
        return [*options, f"{class_path}:{self.folder}", program, *arguments]

    def run(self, program: str, *arguments: str) -> Ran:
        """Run one to its end. One that takes too long ends the JVM, and with it all tests that come after."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            print(json.dumps([program, *arguments]), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert answer, f"Java ended while it ran {program}: {(self.folder / 'errors.txt').read_text()}"
        return Ran(**json.loads(answer))

    def tool(self, server: Server, name: str, *arguments: str) -> str:
        """What one of Kafka's own programs says."""
        return self.run(name, "--bootstrap-server", server.bootstrap, *arguments).printed
