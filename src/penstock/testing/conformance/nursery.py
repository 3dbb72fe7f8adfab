"""Where the child processes of a suite come from: a process that has loaded what they need, and forks them.

An interpreter of its own for each child would spend most of its life on importing. The nursery is a new interpreter, so
nothing of the threads and connections of the suite is in it. It loads the modules of what a child is to run, opens
nothing, and forks. It starts with the first child, and ends with the process that started it.

Between it and each child stands a minder: it says which process the child is and how it ended, and keeps its number
from being given to another process for as long as the suite may still want to kill it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Final

logger = logging.getLogger(__name__)

FORK_TIMEOUT_S: Final = 60.0
"""How long a fork may take. Generous: for the first one the nursery has to start, and the machine may be busy."""
_STREAMS: Final = (1, 2)
"""Standard output and standard error, which the child shares with the suite."""

_PROGRAM: Final = """
import sys
from penstock.testing.conformance.nursery import fork_on_request
connection, payload = fork_on_request(int(sys.argv[1]))
from penstock.testing.conformance.child import run
run(connection, payload)
"""


@dataclass(frozen=True, slots=True)
class _Order:
    """What a child runs, and where: what the suite has changed about its process since the nursery began."""

    payload: bytes
    folder: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    path: list[str] = field(default_factory=lambda: list(sys.path))


class ChildProcess:
    """A child, as the suite sees it."""

    def __init__(self, minder: Connection) -> None:
        self._minder = minder
        self._code: int | None = None
        self._pid = self._hear(FORK_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL; nothing, if it is known to have ended."""
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> int:
        """Its exit code once it has ended (negative: the signal). TimeoutError if it goes on for longer."""
        if self._code is None:
            self._code = self._hear(timeout_s)
        return self._code

    def forget(self) -> None:
        """Nobody asks for it any more: its number is free."""
        self._minder.close()

    def _hear(self, timeout_s: float) -> int:
        if not self._minder.poll(timeout_s):
            raise TimeoutError(f"nothing was heard of a child process for {timeout_s:g} s")
        try:
            return int(self._minder.recv())
        except EOFError:
            raise AssertionError("child processes cannot be started: standard error says why") from None


class Nursery:
    """The suite's end of it."""

    def __init__(self) -> None:
        self._forking = threading.Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def fork(self, connection: Connection, payload: bytes) -> ChildProcess:
        """A process that is given this end of a connection, and what it is to run."""
        ours, theirs = Pipe()
        with theirs, self._forking:
            socket.send_fds(self._control, [b"!"], [connection.fileno(), theirs.fileno(), *_STREAMS])
            ours.send(_Order(payload))
        return ChildProcess(ours)

    def close(self) -> None:
        """It ends when it hears that nobody will ask it any more."""
        self._control.close()
        self._process.wait(FORK_TIMEOUT_S)


def shared_nursery() -> Nursery:
    """The one of this process, which it ends with."""
    return _nursery_of(os.getpid())


@functools.cache
def _nursery_of(_: int) -> Nursery:
    nursery = Nursery()
    atexit.register(nursery.close)
    return nursery


def fork_on_request(number: int) -> tuple[Connection, bytes]:
    """The main program of the nursery. It comes back in each child, with what that one was given."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # minders are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # is the suite's to hear
    with socket.socket(fileno=number) as control:
        while True:  # ends: with the suite, whose end of the socket is closed then
            word, handles, _, _ = socket.recv_fds(control, 1, 2 + len(_STREAMS))
            if not word:
                raise SystemExit
            connection, minder = Connection(handles[0]), Connection(handles[1])
            order: _Order = minder.recv()
            _load(order)
            gc.freeze()  # what is loaded lives as long as the children: none need look through it, or copy it
            if os.fork() == 0:
                break
            connection.close()
            minder.close()
            for handle in handles[2:]:
                os.close(handle)
    _mind(connection, minder)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    for stream, handle in zip(_STREAMS, handles[2:], strict=True):
        os.dup2(handle, stream)
        os.close(handle)
    return connection, order.payload


def _load(order: _Order) -> None:
    """Import what the order names, for this child and those to come."""
    sys.path[:] = order.path
    try:
        pickle.loads(order.payload)
    except Exception as error:
        logger.debug("the child will fail with the same, and say so: %r", error)


def _mind(connection: Connection, minder: Connection) -> None:
    """Fork once more. The child comes back; the minder stays, until nobody asks for the child any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        minder.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return
    connection.close()
    with contextlib.suppress(OSError, EOFError):  # the suite has ended
        minder.send(pid)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        minder.send(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
        minder.recv()
    os._exit(0)
