"""The processes of the demo: each leads its own session, and nothing of it outlives the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.model.processes import end_session
from penstock.prove.broker_process import interruptions_deferred

Hear = Callable[[dict[str, Any]], None]
"""Takes the reports of a process, in a thread. A line that is not a JSON object has the kind `line`."""

_END_TIMEOUT_S: Final = 10.0
_LAST_WORDS_BYTES: Final = 1_500


class Process:
    """One process: started on construction, and gone when `kill` has returned."""

    def __init__(self, name: str, role: str, *arguments: str, output: Path, hear: Hear, temporary: Path) -> None:
        """Its standard error goes to `output`; its temporary files go below `temporary`."""
        temporary.mkdir(exist_ok=True)
        self.name = name
        self._output = output
        self._hear = hear
        command = [sys.executable, "-P", "-m", "penstock.demo.child", role, *arguments]
        with output.open("ab") as errors, interruptions_deferred():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **_environment(temporary)},
            )
        self._listener = threading.Thread(target=self._listen, name=f"listen-{name}", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def ask_to_finish(self) -> None:
        """Ask it to finish. Does nothing if it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, as its exit code shows
            self._process.stdin.write(FINISH)
            self._process.stdin.flush()

    def check(self) -> None:
        """Raise PenstockError, with its last output, if it has failed."""
        if self.exit_code not in (None, 0):
            raise PenstockError(
                f"{self.name} (process {self.pid}) ended with exit code {self.exit_code}. It said:\n{self.last_words()}"
            )

    def last_words(self) -> str:
        said = self._output.read_bytes()[-_LAST_WORDS_BYTES:]
        return said.decode(errors="replace").strip() or "nothing"

    def kill(self) -> None:
        """SIGKILL it and all that it has started. They cannot write or close anything."""
        end_session(self.pid)
        self._process.wait(_END_TIMEOUT_S)
        self._listener.join(_END_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unread input
                    pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed by `kill`
            for line in self._process.stdout:
                self._hear(_said(line))


def _environment(temporary: Path) -> dict[str, str]:
    """A killed process cleans nothing up, so all its files, also those of Spark and Java, go into our folder."""
    java = f'{os.environ.get("JAVA_TOOL_OPTIONS", "")} "-Djava.io.tmpdir={temporary}" -XX:-UsePerfData'.strip()
    folders = dict.fromkeys(("TMPDIR", "SPARK_LOCAL_DIRS"), str(temporary))
    return {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "JAVA_TOOL_OPTIONS": java, **folders}


def _said(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(msgspec.MsgspecError):
        said = msgspec.json.decode(line)
        if isinstance(said, dict) and "kind" in said:
            return said
    return {"kind": "line", "text": line.decode(errors="replace").rstrip()}


FINISH: Final = b"finish\n"


class Owner:
    def __init__(self) -> None:
        self.wants_end = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="owner", daemon=True).start()

    def tell(self, kind: str, **facts: object) -> None:
        line = msgspec.json.encode({"kind": kind, **facts}) + b"\n"
        with self._lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def _listen(self) -> None:
        # Read past Python's own buffer, whose lock a waiting thread would hold when the process ends.
        while said := os.read(sys.stdin.fileno(), len(FINISH)):
            if said == FINISH:
                self.wants_end.set()
        die_with_all()


def die_with_all() -> None:
    """Kill this process and those it has started: they are in its process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
