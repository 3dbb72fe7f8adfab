"""Processes that end together: with the one that started them, or with the leader of their session."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

PR_SET_PDEATHSIG: Final = 1
_END_TIMEOUT_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.02


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (strictly: the parent's thread that started it).

    Ends this process at once if the parent has died already. Other systems than Linux cannot do the first.
    """
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)


def end_session(leader: int) -> None:
    """Kill every process of this session, also those in other process groups."""
    until_s = time.monotonic() + _END_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    while members := list(session_members(leader)):
        signal_all(members, signal.SIGKILL)
        if time.monotonic() > until_s:
            raise PenstockError(f"processes {', '.join(map(str, members))} do not end, though they were killed")
        time.sleep(_LOOK_AGAIN_S)


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to those that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def session_members(leader: int) -> Iterator[int]:
    """The living processes of a session. The leader itself is waited for by its parent."""
    for pid in _all_processes():
        try:
            if pid != leader and os.getsid(pid) == leader and not _has_ended(pid):
                yield pid
        except (ProcessLookupError, PermissionError):
            continue


def _all_processes() -> list[int]:
    if Path("/proc/self").exists():
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True).stdout
    return [int(word) for word in listed.split()]


def _has_ended(pid: int) -> bool:
    """Whether it is a zombie."""
    status = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self").exists():
        told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return told.stdout.strip().startswith("Z")
    try:
        return status.read_text("utf-8", errors="replace").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
