"""`SocketThread`: a thread that waits for several sockets and for a time."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class SocketThread:
    """Repeats: calls `step`, then waits for the sockets as many seconds as it returned. None ends the thread.

    The thread owns the sockets, and closes them when it ends. An OSError of `step` or of a socket's function ends it,
    too.
    """

    def __init__(self, name: str, step: Callable[[], float | None], failed: Callable[[OSError], None]) -> None:
        self._step = step
        self._failed = failed
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._empty)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def watch(self, each: socket.socket, read: Callable[[], None]) -> None:
        """Call `read` whenever something has arrived. To be called before `start`, or in the thread itself."""
        self._selector.register(each, selectors.EVENT_READ, read)

    def forget(self, each: socket.socket) -> None:
        """Stop watching a socket, without closing it. To be called in the thread itself."""
        self._selector.unregister(each)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Make the thread call `step` now."""
        with contextlib.suppress(BlockingIOError, OSError):  # it will wake anyway, or has ended
            self._wake.send(b"w")

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        if self._thread.ident is None:  # never started
            self._close()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (wait_s := self._step()) is not None:
                for key, _ in self._selector.select(wait_s):
                    key.data()
        except OSError as error:
            self._failed(error)
        except BaseException:
            logger.exception("%s ended", self._thread.name)
            raise
        finally:
            self._close()

    def _empty(self) -> None:
        self._woken.recv(4096)

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
        self._wake.close()
