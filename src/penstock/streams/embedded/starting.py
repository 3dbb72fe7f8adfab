"""Starting the broker of a folder: once, however many processes ask for it at the same time."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.broker import last_address
from penstock.errors import BrokerUnavailableError
from penstock.streams.embedded.finding import Found, find, is_owned, owner_pid

TURN_FILE: Final = "starting"
"""Locked by the process whose turn it is to start the broker. The others wait until they find it."""
OUTPUT_FILE: Final = "broker.log"
OUTPUT_KEPT_BYTES: Final = 1_000_000
LAST_WORDS_BYTES: Final = 1_500

_LOOK_AGAIN_S: Final = 0.02
_TRY_AGAIN_S: Final = 0.25
"""How long to wait for the owner of the folder to be found, or to be gone, before another broker is started."""
_ATTEMPTS: Final = 3
"""How often a broker that ends while it starts is tried: it may have been killed, or somebody quicker to its port."""
LOOPBACK: Final = "127.0.0.1"

_started: list[OwnLife] = []
"""Brokers that this process has started and that may have ended: kept so that they are reaped, by `_reap`."""
_started_lock: Final = threading.Lock()


def find_or_start(folder: Path, *, exit_when_idle_s: float, deadline_s: float, port: int = 0) -> Found:
    """The folder's broker, started if there is none: at `port` if that is given and free.

    `deadline_s` is a time of the monotonic clock.
    Raises BrokerUnavailableError, with what the broker last said when it could not start.
    """
    found = find(folder)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Turn(folder) as turn:
            return _start_in_turn(folder, turn, exit_when_idle_s, deadline_s, port)
    except OSError as error:
        raise BrokerUnavailableError(
            f"the broker of {folder} cannot be started: {error.strerror or error} ({error.filename or folder}). "
            "Choose a folder that this user can write to"
        ) from error


def _start_in_turn(folder: Path, turn: Turn, exit_when_idle_s: float, deadline_s: float, port: int) -> Found:
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
                        f"the broker of {folder} could not be started. It said:\n{starting.last_words()}"
                    )
            starting = None
        if starting is None and now_s >= not_before_s and turn.take():
            wanted = port or _last_port(folder)
            starting = Starting(folder, wanted if _is_free(wanted) else 0, exit_when_idle_s)
        time.sleep(_LOOK_AGAIN_S)


def _last_port(folder: Path) -> int:
    """Where the clients of a killed broker still look for it; 0, any free port, when it was not killed."""
    last = last_address(folder)
    return last.port if last is not None else 0


def _is_free(port: int) -> bool:
    """Whether a broker could listen there, as far as can be known beforehand."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _why_not(folder: Path, starting: Starting | None) -> str:
    if starting is not None:
        words = starting.last_words()
        said = f"It said:\n{words}" if words else f"It has said nothing yet; see {folder / OUTPUT_FILE}."
        return (
            f"the broker of {folder} (process {starting.pid}) was started and is not ready yet: a large folder takes "
            f"time to recover. Connect again later, or with a longer connect_timeout_s. {said}"
        )
    if is_owned(folder):
        return (
            f"{folder} is owned by process {owner_pid(folder)}, which does not answer as its broker: see what that "
            "process does; end it if it hangs"
        )
    return f"another process is starting the broker of {folder} and has not finished; try again"


class Turn:
    """The right to start the broker, held by one process at a time and given back however that one ends."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / TURN_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self) -> bool:
        """Whether it is ours; asked again and again, it becomes ours when the others have gone."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Unlocked, not only closed: a process forked in the meantime would still hold the lock.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


class OwnLife(subprocess.Popen[bytes]):
    """A process that is meant to outlive the one that started it; Popen would warn of that when it is forgotten."""

    def __del__(self) -> None:
        pass


class Starting:
    """A broker's process, from its start until it is found, or has ended.

    It has a session of its own, so that what interrupts our terminal does not reach it, and inherits nothing but the
    file that its output goes to.
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
            self._process = OwnLife(
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
        """What it has written, at most the last of it."""
        said = self._output.read_bytes()[self._output_start_bytes :]
        return said[-LAST_WORDS_BYTES:].decode(errors="replace").strip()


def _environment() -> dict[str, str]:
    """Ours. The broker's process stands in another folder, so relative entries of its path are made absolute."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    if path:
        entries = [os.path.abspath(entry) for entry in path.split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join(entries)
    return environment


def _reap() -> None:
    """Forget the brokers that have ended."""
    with _started_lock:
        _started[:] = [process for process in _started if process.poll() is None]
