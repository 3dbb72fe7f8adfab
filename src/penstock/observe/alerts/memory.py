"""What survives a restart: alerts and who was told, in a file beside the rules that one process at a time writes.

Whoever holds the lock tells; others judge and show what is so, and take over, with all that was remembered, when it
goes away. So a console and a `penstock alerts watch` with the same rules do not both wake somebody up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.frames import replace_file
from penstock.observe.alerts.judge import JudgeMemory
from penstock.observe.alerts.ledger import Line

LARGEST_BYTES: Final = 64 * 1024 * 1024


class Memory(msgspec.Struct):
    judge: JudgeMemory = msgspec.field(default_factory=JudgeMemory)
    ledger: list[Line] = []


class MemoryFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def is_ours(self) -> bool:
        return self._lock is not None

    def claim(self) -> bool:
        """Whether we may write it, and tell. OSError when there is no place for it."""
        if self._lock is not None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:
            os.close(lock)
            raise
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        self._lock = lock
        return True

    def holder(self) -> str:
        """Which process tells, for people."""
        with contextlib.suppress(OSError):
            number = Path(f"{self.path}.lock").read_text("ascii", errors="replace").strip()
            if number.isdecimal():
                return f"process {number}"
        return "another process"

    def read(self) -> tuple[Memory, str | None]:
        """What is remembered, and what is wrong with it. One that is damaged is put aside, and we begin anew."""
        try:
            with open(self.path, "rb") as file:
                return msgspec.json.decode(file.read(LARGEST_BYTES), type=Memory), None
        except FileNotFoundError:
            return Memory(), None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            problem = f"what was remembered of alerts in {self.path} cannot be read ({error}): what fires is told again"
            if self.is_ours:
                with contextlib.suppress(OSError):  # the next write replaces it anyway
                    os.replace(self.path, f"{self.path}.damaged")
            return Memory(), problem

    def write(self, memory: Memory) -> None:
        """OSError when it cannot be."""
        assert self.is_ours, "only who has claimed the memory writes it"
        replace_file(self.path, msgspec.json.encode(memory))

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
