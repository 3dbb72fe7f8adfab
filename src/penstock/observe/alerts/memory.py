"""The state that survives a restart: alerts and who was notified, in a file that one process at a time writes.

The process that holds the lock notifies; others evaluate and show, and take over with the stored state when it ends.
So a console and a `penstock alerts watch` with the same rules do not both notify.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.durable_files import replace_file
from penstock.observe.alerts.evaluator import EvaluatorState
from penstock.observe.alerts.notification_log import NotificationState

LARGEST_BYTES: Final = 64 * 1024 * 1024


class Memory(msgspec.Struct):
    evaluator: EvaluatorState = msgspec.field(default_factory=EvaluatorState, name="judge")
    ledger: list[NotificationState] = []


class MemoryFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def is_ours(self) -> bool:
        return self._lock is not None

    def claim(self) -> bool:
        """Whether this process may write the file and notify. Raises OSError when the file cannot be created."""
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
        """Which process notifies, for people."""
        with contextlib.suppress(OSError):
            number = Path(f"{self.path}.lock").read_text("ascii", errors="replace").strip()
            if number.isdecimal():
                return f"process {number}"
        return "another process"

    def read(self) -> tuple[Memory, str | None]:
        """The state, and what is wrong with it. A damaged file is moved aside, and the state starts empty."""
        try:
            with open(self.path, "rb") as file:
                return msgspec.json.decode(file.read(LARGEST_BYTES), type=Memory), None
        except FileNotFoundError:
            return Memory(), None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            problem = f"the alert state in {self.path} cannot be read ({error}): firing alerts are notified again"
            if self.is_ours:
                with contextlib.suppress(OSError):  # the next write replaces it
                    os.replace(self.path, f"{self.path}.damaged")
            return Memory(), problem

    def write(self, memory: Memory) -> None:
        """Raises OSError when it fails."""
        assert self.is_ours, "only the process that has claimed the state writes it"
        replace_file(self.path, msgspec.json.encode(memory))

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
