"""Run as a program: a broker that kills itself just before a given change of its data folder.

It imports the broker once and forks for every start, so that a start takes milliseconds. One line of JSON on standard
input starts one broker:

    {"arguments": ["serve", ...], "output": "file", "data": "folder", "kill_at": 7, "armed": true}

It is answered by {"pid": ...}, and by {"exit": ...} when that broker has ended. The changes are counted from the start
on, or from the first SIGUSR1 on if it is not armed: files opened for writing, writes, syncs, renames, removals. Every
second death at a write leaves half of it behind. Beside the output, the file with the suffix `.changes` holds how many
there were. Without `kill_at` nothing is counted, and the broker lives until somebody else ends it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES: Final = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})


class Countdown:
    """Counts changes once it is armed, and ends the process at the given one."""

    def __init__(self, data: str, kill_at: int, armed: bool, counted: int) -> None:
        self._data = data
        self._kill_at = kill_at
        self._armed = armed
        self._counted = counted
        self._changes = 0

    def arm(self, *_: Any) -> None:
        self._armed = True

    def is_over(self) -> bool:
        """One change more. True if it must not happen any more."""
        if not self._armed:
            return False
        self._changes += 1
        REAL_WRITE(self._counted, b"%d" % self._changes, 0)
        return self._changes >= self._kill_at

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook of Python: told of every file that is opened, renamed, removed."""
        concerns_us = bool(arguments) and str(arguments[0]).startswith(self._data)
        changes = event in CHANGES or (event == "open" and bool((arguments[2] or 0) & WRITING))
        if concerns_us and changes and self.is_over():
            die()

    def sync(self, fd: int) -> None:
        """Counts, and takes no time: who kills a process loses nothing of what it has written. See `power_cut`."""
        if self.is_over():
            die()

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        if self.is_over():
            if self._kill_at % 2 == 0:
                REAL_WRITE(fd, bytes(data)[: len(data) // 2], position)
            die()
        return REAL_WRITE(fd, data, position)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        return self.pwrite(fd, b"".join(buffers), position)


REAL_WRITE: Final = os.pwrite


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(order: dict[str, Any]) -> None:
    """Become the broker."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sink = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    if order["kill_at"] is not None:
        counted = os.open(Path(order["output"]).with_suffix(".changes"), os.O_WRONLY | os.O_CREAT)
        countdown = Countdown(order["data"], order["kill_at"], order["armed"], counted)
        signal.signal(signal.SIGUSR1, countdown.arm)
        sys.addaudithook(countdown.heard)
        os.fdatasync = os.fsync = countdown.sync  # type: ignore[assignment]
        os.pwrite = countdown.pwrite  # type: ignore[assignment]
        os.pwritev = countdown.pwritev  # type: ignore[assignment]
    sys.argv = ["penstock", *order["arguments"]]
    from penstock.cli import main

    main()


def serve_orders() -> None:
    import penstock.broker.metrics
    import penstock.broker.server
    import penstock.cli
    import penstock.log.compacting.compaction  # noqa: F401

    gc.freeze()  # what is loaded lives as long as the brokers: none need look through it, or copy it
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(json.loads(line))
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"exit": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    serve_orders()
