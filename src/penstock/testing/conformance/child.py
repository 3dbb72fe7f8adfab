"""Child processes of a suite: they use the backend, report what they did, and are killed.

The child is not a fork of the suite, so it shares none of its threads and connections (see `fork_server`). Its function
and the factory of the backend are passed by name: both must be functions of a module, or `functools.partial` of one.
"""

from __future__ import annotations

import pickle
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, Self

from penstock.testing.conformance.fork_server import shared_fork_server

RECEIVE_TIMEOUT_S: Final = 60.0
"""How long a child may be silent. Generous: it has to start, and the machine may be busy."""
END_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last message of a child that ends with an error."""

    text: str


class Parent:
    """The parent, as the child sees it. Passed to the child's function."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        self._connection.send(message)

    def receive(self, timeout_s: float = RECEIVE_TIMEOUT_S) -> Any:
        """The next message of the parent. Raises EOFError when it is gone."""
        if not self._connection.poll(timeout_s):
            raise TimeoutError(f"the parent sent nothing for {timeout_s:g} s")
        return self._connection.recv()


Work = Callable[..., None]
"""What a child runs: `work(backend, parent, *arguments)`."""


class Child:
    """A child process, as its parent sees it. Used in a `with` block, which leaves no process behind."""

    def __init__(self, open_backend: Callable[[], Any], work: Work, *arguments: Any) -> None:
        payload = _pickled((open_backend, work, arguments))
        self._connection, theirs = Pipe()
        with theirs:
            self._process = shared_fork_server().fork(theirs, payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._wait()
        self._process.forget()
        self._connection.close()

    def send(self, message: Any) -> None:
        self._connection.send(message)

    def receive(self, timeout_s: float = RECEIVE_TIMEOUT_S) -> Any:
        """The next message of the child. Raises AssertionError when it ended or failed."""
        if not self._connection.poll(timeout_s):
            raise AssertionError(f"the child process sent nothing for {timeout_s:g} s")
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            raise AssertionError(
                f"the child process ended, with code {self._wait()}, before its last message"
            ) from None
        if isinstance(message, _Failure):
            raise AssertionError(f"the child process failed:\n{message.text}")
        return message

    def kill(self) -> list[Any]:
        """SIGKILL. Returns the messages that were not received yet."""
        self._process.kill()
        self._wait()
        return self._listen(END_TIMEOUT_S)

    def wait_until_killed(self) -> list[Any]:
        """For a child that kills itself: wait for its end, and return its remaining messages."""
        said = self._listen(END_TIMEOUT_S)
        code = self._wait()
        assert code == -signal.SIGKILL, f"the child process should have been killed on its way, but ended with {code}"
        return said

    def wait_until_done(self, timeout_s: float = END_TIMEOUT_S) -> list[Any]:
        """Wait for an end without an error, and return the remaining messages."""
        said = self._listen(timeout_s)
        code = self._wait()
        assert code == 0, f"the child process ended with {code}"
        return said

    def _listen(self, timeout_s: float) -> list[Any]:
        said: list[Any] = []
        deadline_s = time.monotonic() + timeout_s
        while True:  # ends: at the latest with the deadline
            if not self._connection.poll(max(0.0, deadline_s - time.monotonic())):
                raise AssertionError(
                    f"the child process did not end within {timeout_s:g} s; its last messages were {said[-3:]}"
                )
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                return said
            if isinstance(message, _Failure):
                raise AssertionError(f"the child process failed:\n{message.text}")
            said.append(message)

    def _wait(self) -> int:
        return self._process.wait(END_TIMEOUT_S)


def _pickled(what: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(what)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(
            f"the factory cannot be given to a child process ({error}): make it a function of a module that can be "
            "imported, or functools.partial of one, not a lambda or a function inside of another"
        ) from error


def run(connection: Connection, payload: bytes) -> None:
    """The main program of a child process."""
    parent = Parent(connection)
    try:
        open_backend, work, arguments = pickle.loads(payload)
        backend = open_backend()
        work(backend, parent, *arguments)
        backend.close()
    except BaseException:
        parent.send(_Failure(traceback.format_exc()))
        raise
    finally:
        connection.close()
