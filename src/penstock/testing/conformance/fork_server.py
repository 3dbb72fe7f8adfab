"""The source of a suite's child processes: a process that has imported what they need, and forks them.

A new interpreter per child would spend most of its time on imports. The fork server is one new interpreter that
shares none of the suite's threads and connections, imports the modules that a child needs, and forks. It ends with the
process that started it.

A supervisor process between it and each child reports the child's process id and exit code, and keeps the id from
being reused for as long as the suite may still want to kill the child.
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
"""How long a fork may take. Generous: the first one has to start the fork server, and the machine may be busy."""
_STREAMS: Final = (1, 2)
"""Standard output and standard error, which the child shares with the suite."""

_PROGRAM: Final = """
import sys
from penstock.testing.conformance.fork_server import fork_on_request
connection, payload = fork_on_request(int(sys.argv[1]))
from penstock.testing.conformance.child import run
run(connection, payload)
"""


@dataclass(frozen=True, slots=True)
class _Order:
    """What a child runs, and what the suite has changed about its process since the fork server started."""

    payload: bytes
    folder: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    path: list[str] = field(default_factory=lambda: list(sys.path))


class ChildProcess:
    def __init__(self, supervisor: Connection) -> None:
        self._supervisor = supervisor
        self._waiting = threading.Lock()
        """A case may wait in one thread while another one leaves the `with` block of the child."""
        self._code: int | None = None
        self._pid = self._receive(FORK_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL; does nothing if it is known to have ended."""
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> int:
        """Wait for its exit code (negative: the signal). Raises TimeoutError."""
        with self._waiting:
            if self._code is None:
                self._code = self._receive(timeout_s)
            return self._code

    def forget(self) -> None:
        self._supervisor.close()

    def _receive(self, timeout_s: float) -> int:
        if not self._supervisor.poll(timeout_s):
            raise TimeoutError(f"nothing was heard of a child process for {timeout_s:g} s")
        try:
            return int(self._supervisor.recv())
        except EOFError:
            raise AssertionError("child processes cannot be started: standard error says why") from None


class ForkServer:
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
        """Fork a process that gets this end of a connection, and what to run."""
        ours, theirs = Pipe()
        with theirs, self._forking:
            socket.send_fds(self._control, [b"!"], [connection.fileno(), theirs.fileno(), *_STREAMS])
            ours.send(_Order(payload))
        return ChildProcess(ours)

    def close(self) -> None:
        self._control.close()
        self._process.wait(FORK_TIMEOUT_S)


def shared_fork_server() -> ForkServer:
    """The fork server of this process, which ends with it."""
    return _fork_server_of(os.getpid())


@functools.cache
def _fork_server_of(_: int) -> ForkServer:
    server = ForkServer()
    atexit.register(server.close)
    return server


def fork_on_request(number: int) -> tuple[Connection, bytes]:
    """The main program of the fork server. It returns in each child, with what that child was given."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the suite handles it
    with socket.socket(fileno=number) as control:
        while True:  # ends: with the suite, whose end of the socket is closed then
            word, handles, _, _ = socket.recv_fds(control, 1, 2 + len(_STREAMS))
            if not word:
                raise SystemExit
            connection, supervisor = Connection(handles[0]), Connection(handles[1])
            order: _Order = supervisor.recv()
            _load(order)
            gc.freeze()  # so that children neither scan nor copy what is imported
            if os.fork() == 0:
                break
            connection.close()
            supervisor.close()
            for handle in handles[2:]:
                os.close(handle)
    _supervise(connection, supervisor)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    for stream, handle in zip(_STREAMS, handles[2:], strict=True):
        os.dup2(handle, stream)
        os.close(handle)
    return connection, order.payload


def _load(order: _Order) -> None:
    """Import what the order names, for this child and later ones."""
    sys.path[:] = order.path
    try:
        pickle.loads(order.payload)
    except Exception as error:
        logger.debug("the child will fail with the same, and say so: %r", error)


def _supervise(connection: Connection, supervisor: Connection) -> None:
    """Fork once more. The child returns; the supervisor stays until the child is no longer needed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        supervisor.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return
    connection.close()
    with contextlib.suppress(OSError, EOFError):  # the suite has ended
        supervisor.send(pid)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        supervisor.send(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
        supervisor.recv()
    os._exit(0)
