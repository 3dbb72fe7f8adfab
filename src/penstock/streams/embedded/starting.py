"""Starting the broker of a folder, once for all processes that need it at the same time."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, Self

from penstock.broker import last_address
from penstock.errors import BrokerUnavailableError
from penstock.streams.embedded.finding import FoundBroker, find, is_owned, owner_pid

TURN_FILE: Final = "starting"
"""Locked by the process that starts the broker. The others wait until they find it."""
OUTPUT_FILE: Final = "broker.log"
OUTPUT_KEPT_BYTES: Final = 1_000_000
LAST_WORDS_BYTES: Final = 1_500

_LOOK_AGAIN_S: Final = 0.02
_TRY_AGAIN_S: Final = 0.25
"""How long to wait for the owner of the folder to answer or stop before another broker is started."""
_ATTEMPTS: Final = 3
"""How often to try a broker that stops while it starts: it may have been killed, or its port was taken."""
LOOPBACK: Final = "127.0.0.1"

_started: list[DetachedProcess] = []
"""Brokers that this process started, kept to be reaped."""
_started_lock: Final = threading.Lock()


def find_or_start(folder: Path, *, exit_when_idle_s: float, deadline_s: float, port: int = 0) -> FoundBroker:
    """The folder's broker, started if there is none: at `port` if that is given and free.

    `deadline_s` is a time of the monotonic clock. Raises BrokerUnavailableError, with the last output of the broker.
    """
    found = find(folder)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with StartLock(folder) as turn:
            return _start_in_turn(folder, turn, exit_when_idle_s, deadline_s, port)
    except OSError as error:
        raise BrokerUnavailableError(
            f"the broker of {folder} cannot be started: {error.strerror or error} ({error.filename or folder}). "
            "Choose a folder that this user can write to"
        ) from error


def _start_in_turn(folder: Path, turn: StartLock, exit_when_idle_s: float, deadline_s: float, port: int) -> FoundBroker:
    starting: Starting | None = None
    failures = 0
    not_before_s = 0.0
    while True:
        found = find(folder)
        if found is not None:
            return found
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise BrokerUnavailableError(_why_not(folder, starting))
        if starting is not None and starting.has_ended():
            if is_owned(folder):
                not_before_s = now_s + _TRY_AGAIN_S
            else:
                failures += 1
                if failures >= _ATTEMPTS:
                    raise BrokerUnavailableError(
                        f"the broker of {folder} could not be started. Its output:\n{starting.last_words()}",
                        retriable=False,
                    )
            starting = None
        if starting is None and now_s >= not_before_s and turn.take():
            wanted = port or _last_port(folder)
            starting = Starting(folder, wanted if _is_free(wanted) else 0, exit_when_idle_s)
        time.sleep(_LOOK_AGAIN_S)


def _last_port(folder: Path) -> int:
    """The port where the clients of a killed broker still look for it; 0, any free port, if it was not killed."""
    last = last_address(folder)
    return last.port if last is not None else 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _why_not(folder: Path, starting: Starting | None) -> str:
    owner = owner_pid(folder) if is_owned(folder) else None
    if owner is not None and (starting is None or owner != starting.pid):
        return (
            f"{folder} is in use by process {owner}, which does not answer as its broker: look at "
            f"{folder / OUTPUT_FILE}, and stop that process if it hangs"
        )
    if starting is not None:
        words = starting.last_words()
        said = f"Its output:\n{words}" if words else f"It has no output yet; see {folder / OUTPUT_FILE}."
        return (
            f"the broker of {folder} (process {starting.pid}) was started and is not ready yet: a large folder takes "
            f"time to recover. Connect again later, or with a longer connect_timeout_s. {said}"
        )
    return f"another process is starting the broker of {folder} and has not finished; try again"


class StartLock:
    """The right to start the broker: a lock that is released however its process ends."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / TURN_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self) -> bool:
        """Try to take the lock."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Unlocked, not only closed: a process that was forked since would still hold the lock.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


class DetachedProcess(subprocess.Popen[bytes]):
    """A process that outlives the one that started it. Popen would warn about that when it is collected."""

    def __del__(self) -> None:
        pass


class Starting:
    """The process of a broker that starts.

    It has its own session, so that Ctrl-C in the terminal does not reach it, and inherits only its output file.
    """

    def __init__(self, folder: Path, port: int, exit_when_idle_s: float) -> None:
        _reap()
        self._output = folder / OUTPUT_FILE
        command = [sys.executable, "-P", "-m", "penstock.cli", "serve", "--data", str(folder)]
        command += ["--listen", f"{LOOPBACK}:{port}", "--exit-when-idle", f"{exit_when_idle_s:g}"]
        with self._output.open("ab") as output:
            if output.tell() > OUTPUT_KEPT_BYTES:
                output.truncate(0)
            self._output_start_bytes = output.seek(0, os.SEEK_END)
            self._process = DetachedProcess(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                close_fds=True,
                cwd="/",
                env=_environment(),
            )
        with _started_lock:
            _started.append(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The end of its output."""
        said = self._output.read_bytes()[self._output_start_bytes :]
        return said[-LAST_WORDS_BYTES:].decode(errors="replace").strip()


def _environment() -> dict[str, str]:
    """Our environment. The broker runs in another folder, so relative entries of PYTHONPATH are made absolute."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    if path:
        entries = [os.path.abspath(entry) for entry in path.split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join(entries)
    return environment


def _reap() -> None:
    with _started_lock:
        _started[:] = [process for process in _started if process.poll() is None]
