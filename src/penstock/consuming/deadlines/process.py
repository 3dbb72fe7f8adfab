"""Analysers in processes of their own, for CPU-bound functions, which would block each other in threads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ClosedError, ConfigError, WorkerDiedError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 5.0
_NICE: Final = 10
_READY: Final = "ready"


class ProcessFunction:
    """A function that is called in another process. Each calling thread has a process of its own.

    A process that dies during a call fails that call, and is replaced for the next one.
    """

    def __init__(self, name: str, function: Callable[[Any], Any], count: int) -> None:
        self._name = name
        try:
            pickle.dumps(function)
        except Exception as error:
            raise ConfigError(
                f"the analyser {name} cannot be pickled: {error}. Define it with def at the top level of a module"
            ) from error
        self._function = function
        self._local = threading.local()
        self._lock = threading.Lock()
        self._closed = False
        self._workers: list[_Worker] = []
        self._spare: list[_Worker] = []
        try:
            for _ in range(count):
                self._spare.append(self._start())
            for worker in self._spare:
                worker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __call__(self, argument: Any) -> Any:
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = self._take()
        try:
            request = pickle.dumps(argument, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise ConfigError(
                f"the argument, a {type(argument).__name__}, cannot be pickled for the process of {self._name}: {error}"
            ) from error
        try:
            return worker.call(request)
        except WorkerDiedError:
            self._local.worker = None
            self._forget(worker)
            if self._closed:
                raise ClosedError(f"the analyser {self._name} was closed during a call") from None
            raise

    def close(self) -> None:
        """Kill the processes at once; running calls fail with ClosedError."""
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, []
            spare, self._spare = self._spare, []
        for worker in workers:
            worker.kill()
        for worker in spare:
            worker.close_pipe()

    def _take(self) -> _Worker:
        with self._lock:
            worker = self._spare.pop() if self._spare else None
        if worker is None:
            worker = self._start()
            worker.wait_until_ready()
        return worker

    def _start(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise ClosedError(f"the analyser {self._name} is closed")
            worker = _Worker(self._name, self._function)
            self._workers.append(worker)
            return worker

    def _forget(self, worker: _Worker) -> None:
        worker.kill()
        worker.close_pipe()
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)


class _Worker:
    """One process, which answers calls one after the other."""

    def __init__(self, name: str, function: Callable[[Any], Any]) -> None:
        self._name = name
        # Never forked: this process has threads, and a copy might wait for ever for a lock that one of them held.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function), name=f"within-{name}", daemon=True)
        try:
            self._process.start()
        finally:
            theirs.close()

    def wait_until_ready(self) -> None:
        try:
            if self._pipe.poll(_START_TIMEOUT_S) and self._pipe.recv() == _READY:
                return
        except (EOFError, OSError):
            self._process.join(_START_TIMEOUT_S)
        raise WorkerDiedError(
            f"the process of the analyser {self._name} did not start (exit code {self._process.exitcode}): can its "
            'module be imported, and does the program start under `if __name__ == "__main__":`?'
        )

    def call(self, request: bytes) -> Any:
        try:
            self._pipe.send_bytes(request)
            failed, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(1.0)
            raise WorkerDiedError(
                f"the process of the analyser {self._name} died during a call (exit code "
                f"{self._process.exitcode}); it is replaced"
            ) from error
        if failed:
            raise answer
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join(_END_TIMEOUT_S)

    def close_pipe(self) -> None:
        """Only for the thread that uses it, or when none does: its file descriptor may be reused right after."""
        self._pipe.close()


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    """Answer calls until the owner is gone. Runs in the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the owner ends this one
    # When every core computes, a caller whose time is up must get one at once, not at the end of a time slice.
    os.nice(_NICE)
    pipe.send(_READY)
    while True:  # until the pipe is closed
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            reply: tuple[bool, Any] = (False, function(pickle.loads(request)))
        except Exception as error:
            error.add_note(f"In the process of the analyser:\n{traceback.format_exc()}")
            reply = (True, error)
        try:
            pipe.send(reply)
        except OSError:
            return
        except Exception as error:  # the answer, or the error, cannot be pickled
            what = f"an error, {reply[1]!r}," if reply[0] else f"an answer of type {type(reply[1]).__name__}"
            pipe.send((True, TypeError(f"{what} cannot be pickled by the process of an analyser: {error}")))
