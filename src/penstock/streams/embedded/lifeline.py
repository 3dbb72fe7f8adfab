"""The lifeline: one idle connection for as long as somebody uses the log.

It keeps the broker from ending for want of clients while the user is silent, and notices at once when the broker dies.
A broker that ends by itself when idle was started for its clients, so its clients start it again, on the same port,
where librdkafka waits for it: records under way are tried again, and stored once.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.streams.embedded.finding import Found, find
from penstock.streams.embedded.starting import find_or_start
from penstock.streams.kafka.plain import NotKafkaError
from penstock.streams.options import Options

logger = logging.getLogger(__name__)

_PING_S: Final = 60.0
"""Much less than `connections.max.idle.ms`, after which the broker closes a connection that asks nothing."""
_LOOK_AGAIN_S: Final = 0.5


class Lifeline:
    """Holds the connection, in a thread of its own, until `close`."""

    def __init__(self, folder: Path, found: Found, options: Options) -> None:
        self._folder = folder
        self._found = found
        self._options = options
        self._problem: str | None = None
        self._on_problem: Callable[[str], None] | None = None
        self._stopping = threading.Event()
        self._wake_up, self._sleeper = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="penstock-lifeline", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why the broker can no longer be reached under the address that the connection knows."""
        return self._problem

    def tell(self, on_problem: Callable[[str], None]) -> None:
        """Call this, in our thread, when there is a problem."""
        self._on_problem = on_problem

    def close(self) -> None:
        self._stopping.set()
        self._wake_up.send(b".")
        self._thread.join()
        for each in (self._wake_up, self._sleeper, self._found.connection):
            each.close()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            if self._is_cut() and not self._stopping.is_set():
                self._found.connection.close()
                if not self._replace():
                    return

    def _is_cut(self) -> bool:
        """Wait until it is time to say something, or until there is news; answer whether the broker is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._found.connection.socket, selectors.EVENT_READ)
            selector.register(self._sleeper, selectors.EVENT_READ)
            ready = selector.select(_PING_S)
        if any(key.fileobj is self._sleeper for key, _ in ready):
            return False
        if ready:
            return True  # the broker says nothing unasked: this is the end of the connection
        try:
            return self._found.connection.cluster_id() != self._found.address.cluster_id
        except (OSError, NotKafkaError):
            return True

    def _replace(self) -> bool:
        """Find the broker again, or start it. Whether the connection can go on."""
        lost = self._found.address
        try:
            found = self._start_again() if lost.exit_when_idle_s is not None else self._await_return()
        except PenstockError as error:
            self._give_up(f"the broker of {self._folder} has ended and could not be started again: {error}")
            return False
        if found is None:
            return False
        self._found = found
        if found.address.port != lost.port:
            port = found.address.port
            self._give_up(f"the broker of {self._folder} is back at another port, {port}: connect again")
            return False
        return True

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        logger.error("%s", problem)
        if self._on_problem is not None:
            self._on_problem(problem)

    def _start_again(self) -> Found:
        lost = self._found.address
        assert lost.exit_when_idle_s is not None
        logger.warning("the broker of %s (process %d) is gone: starting it again", self._folder, lost.pid)
        deadline_s = time.monotonic() + self._options.connect_timeout_s
        return find_or_start(
            self._folder, exit_when_idle_s=lost.exit_when_idle_s, deadline_s=deadline_s, port=lost.port
        )

    def _await_return(self) -> Found | None:
        """A broker that somebody started by hand is theirs to start again. None when we are closed first."""
        logger.warning("the broker of %s, which was started by hand, has ended: waiting for its return", self._folder)
        while not self._stopping.wait(_LOOK_AGAIN_S):
            found = find(self._folder)
            if found is not None:
                return found
        return None
