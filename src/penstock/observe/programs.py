"""Supervised programs, as their supervisor tells in a file beside their logs, whether it still runs or not."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock.errors import ConfigError
from penstock.observe.facts import DEAD
from penstock.observe.pipelines import is_held

STATUS_FILE: Final = "supervisor.json"
SUPERVISOR_LOCK: Final = "supervisor.lock"
LOGS: Final = Path("logs")
"""Where a supervisor keeps its logs by default, in its working folder."""
STATUS_EVERY_S: Final = 10.0
"""A supervisor writes the file at least so often."""
_DEAD_S: Final = 60.0
"""A supervisor of another host that has written nothing for this long counts as dead: locks tell only of this host."""
_TAIL_BYTES: Final = 64 * 1024

ProgramState = Literal["starting", "running", "restarting", "stopping", "finished", "stopped", "failed", "dead"]
_OVER: Final = frozenset({"finished", "stopped", "failed"})


class ProgramStatus(msgspec.Struct, frozen=True):
    """What is known about one program."""

    name: str
    file: str
    state: ProgramState
    """starting (not ready yet), running, restarting (it has died, and waits to be started again), stopping, finished
    (it ended by itself, and well), stopped (by the supervisor), failed (given up), dead (its supervisor has died)"""
    since_ms: int
    """When it entered this state."""
    is_ready: bool
    problems: list[str]
    """What keeps it from being ready."""
    pid: int | None
    restarts: int
    progress: int
    """Records finished and rows read or written by its current process."""
    last_error: str | None
    """How it died last."""
    restart_in_s: float | None
    log: str


class SupervisorStatus(msgspec.Struct, frozen=True):
    """What a supervisor tells: the answer at `/programs`, and its file."""

    supervisor: int
    """Its process id."""
    host: str
    at_ms: int
    programs: list[ProgramStatus]


@dataclass(frozen=True, slots=True)
class SupervisorFacts:
    """A supervisor and its programs."""

    folder: Path
    """Of its logs."""
    status: SupervisorStatus
    is_running: bool

    @property
    def programs(self) -> Sequence[ProgramStatus]:
        """Those that a supervisor had not ended before it died are dead."""
        if self.is_running:
            return self.status.programs
        return [_without_supervisor(each, self.status) for each in self.status.programs]


def find_supervisor(folder: Path | None) -> SupervisorFacts | None:
    """The supervisor that keeps its logs in this folder, or in `logs` of it; by default in `logs` of the working
    folder. None: none has run there. ConfigError if its file cannot be read."""
    candidates = [LOGS] if folder is None else [folder, folder / LOGS]
    found = next((each for each in candidates if (each / STATUS_FILE).is_file()), None)
    if found is None:
        return None
    file = found.absolute() / STATUS_FILE
    try:
        status = msgspec.json.decode(file.read_bytes(), type=SupervisorStatus)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not what this version of penstock writes: {error}") from error
    if status.host == socket.gethostname():
        is_running = is_held(file.with_name(SUPERVISOR_LOCK))
    else:
        is_running = time.time() - status.at_ms / 1000 < _DEAD_S
    is_running = is_running and not all(each.state in _OVER for each in status.programs)
    return SupervisorFacts(file.parent, status, is_running)


def log_tail(facts: SupervisorFacts, program: ProgramStatus) -> str:
    """The last lines of a program's log, at most 64 kB."""
    log = facts.folder / Path(program.log).name  # the folder may have been moved, and no other file is read
    text, is_whole = _end_of(log, _TAIL_BYTES)
    if is_whole:
        text = _end_of(log.with_name(f"{log.name}.1"), _TAIL_BYTES - len(text))[0] + text
    return text.decode(errors="replace")


def _end_of(file: Path, most: int) -> tuple[bytes, bool]:
    """The last whole lines of a file, as many as fit, and whether that is all of it; nothing if it does not exist."""
    try:
        with open(file, "rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - most))
            data = opened.read(most)
    except OSError:
        return b"", True
    return (data, True) if size <= most else (data.partition(b"\n")[2], False)


def _without_supervisor(program: ProgramStatus, status: SupervisorStatus) -> ProgramStatus:
    if program.state in _OVER:
        return program
    problems = [f"its supervisor, process {status.supervisor}, has died: start it again"]
    return msgspec.structs.replace(
        program,
        state=DEAD,
        since_ms=status.at_ms,
        is_ready=False,
        problems=problems,
        pid=None,
        restart_in_s=None,
    )
