"""A broker to be killed: `penstock serve` on a folder, in its own process, restarted on the same port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Self

import msgspec

from penstock.errors import BrokerUnavailableError

_LISTENING: Final = re.compile(rb"penstock: listening on 127\.0\.0\.1:(?P<port>\d+)")
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 20.0
_LOOK_AGAIN_S: Final = 0.01
_ORPHAN_S: Final = 30.0
"""A broker that outlives us, because we were killed too, ends after this long without a client."""


@dataclass(frozen=True, slots=True)
class Recovery:
    seconds: float
    """From the start of the process until it listens."""
    scanned_bytes: int
    truncated_bytes: int


class _Line(msgspec.Struct):
    """The log line of the broker about its recovery."""

    scanned_bytes: int | None = None
    truncated_bytes: int = 0


@contextmanager
def interruptions_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block, so that no started process is left unowned."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread only
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {
        number: signal.signal(number, lambda *arguments: came.append(arguments))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number_that_came, frame in came[:1]:
            handler = before[signal.Signals(number_that_came)]
            if callable(handler):
                handler(number_that_came, frame)
            elif handler == signal.SIG_DFL:
                signal.raise_signal(number_that_came)


class BrokerProcess:
    """Start it with `start`; it ends with the `with` block."""

    def __init__(self, data: Path, output: Path) -> None:
        self.port = 0
        self._data = data
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker has not been started"
        return self._process.pid

    def start(self) -> Recovery:
        """Start it, on the port of the first start; returns when it listens."""
        started_s = time.monotonic()
        command = [sys.executable, "-m", "penstock.cli", "serve", "--data", str(self._data)]
        command += ["--listen", f"127.0.0.1:{self.port}", "--exit-when-idle", str(_ORPHAN_S), "--log-format", "json"]
        with self._output.open("wb") as output, interruptions_deferred():
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        while True:
            said = self._output.read_bytes()
            listening = _LISTENING.search(said)
            if listening is not None:
                self.port = int(listening["port"])
                seconds = time.monotonic() - started_s
                return _recovery(said, seconds)
            if self._process.poll() is not None or time.monotonic() - started_s > _START_TIMEOUT_S:
                raise BrokerUnavailableError(f"the broker did not start. It said:\n{said.decode(errors='replace')}")
            time.sleep(_LOOK_AGAIN_S)

    def kill(self) -> None:
        """SIGKILL: it cannot write or close anything."""
        assert self._process is not None, "the broker has not been started"
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


def _recovery(said: bytes, seconds: float) -> Recovery:
    for text in said.splitlines():
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError:
            continue
        if line.scanned_bytes is not None:
            return Recovery(seconds, line.scanned_bytes, line.truncated_bytes)
    return Recovery(seconds, 0, 0)


def folder_bytes(folder: Path) -> int:
    return sum(os.stat(path).st_size for path in folder.rglob("*") if path.is_file())
