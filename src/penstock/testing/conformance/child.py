"""Child processes of a suite: they use the backend, say what they did, and are killed.

The child is no fork of the parent: nothing of its threads and connections is in it (see `nursery`). What it runs, and
the factory of the backend, go there by name, so both must be functions of a module (or `functools.partial` of one).
"""

from __future__ import annotations

import pickle
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Any, Final, Self

from penstock.testing.conformance.nursery import shared_nursery

HEAR_TIMEOUT_S: Final = 60.0
"""How long a child may be silent when it is listened to. Generous: it has to start, and the machine may be busy."""
END_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a child says last when it ends with an error."""

    text: str


class Parent:
    """What the child sees of its parent. Given to the function that it runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, message: Any) -> None:
        """Tell the parent: it hears of this whatever happens to this process afterwards."""
        self._connection.send(message)

    def hear(self, timeout_s: float = HEAR_TIMEOUT_S) -> Any:
        """What the parent says next. EOFError when it is gone."""
        if not self._connection.poll(timeout_s):
            raise TimeoutError(f"the parent said nothing for {timeout_s:g} s")
        return self._connection.recv()


Work = Callable[..., None]
"""What a child runs: `work(backend, parent, *arguments)`."""


class Child:
    """A child process, seen by its parent. Used in a `with` block, which leaves no process behind."""

    def __init__(self, open_backend: Callable[[], Any], work: Work, *arguments: Any) -> None:
        payload = _pickled((open_backend, work, arguments))
        self._connection, theirs = Pipe()
        with theirs:
            self._process = shared_nursery().fork(theirs, payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._wait()
        self._process.forget()
        self._connection.close()

    def say(self, message: Any) -> None:
        """Tell the child something."""
        self._connection.send(message)

    def hear(self, timeout_s: float = HEAR_TIMEOUT_S) -> Any:
        """What the child says next. AssertionError when it ended, or failed, instead."""
        if not self._connection.poll(timeout_s):
            raise AssertionError(f"the child process said nothing for {timeout_s:g} s")
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            raise AssertionError(f"the child process ended, with code {self._wait()}, and had more to say") from None
        if isinstance(message, _Failure):
            raise AssertionError(f"the child process failed:\n{message.text}")
        return message

    def kill(self) -> list[Any]:
        """SIGKILL. Gives what the child had said before and nobody had heard."""
        self._process.kill()
        self._wait()
        return self._rest()

    def wait_until_killed(self, timeout_s: float = END_TIMEOUT_S) -> list[Any]:
        """For a child that kills itself on its way: give what it said before, once it is dead."""
        said = self._listen(timeout_s)
        code = self._wait()
        assert code == -signal.SIGKILL, f"the child process should have been killed on its way, but ended with {code}"
        return said

    def wait_until_done(self, timeout_s: float = END_TIMEOUT_S) -> list[Any]:
        """Give what it said, once it has ended without an error."""
        said = self._listen(timeout_s)
        code = self._wait()
        assert code == 0, f"the child process ended with {code}"
        return said

    def _listen(self, timeout_s: float) -> list[Any]:
        """Everything that is said up to its end."""
        said: list[Any] = []
        deadline_s = time.monotonic() + timeout_s
        while True:  # ends: at the latest with the deadline
            if not self._connection.poll(max(0.0, deadline_s - time.monotonic())):
                raise AssertionError(f"the child process did not end within {timeout_s:g} s; it said {said[-3:]} last")
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                return said
            if isinstance(message, _Failure):
                raise AssertionError(f"the child process failed:\n{message.text}")
            said.append(message)

    def _rest(self) -> list[Any]:
        return self._listen(END_TIMEOUT_S)

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
        parent.say(_Failure(traceback.format_exc()))
        raise
    finally:
        connection.close()
