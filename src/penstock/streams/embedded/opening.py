"""`log:` URLs, as `penstock.streams.schemes` finds them."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.log.store import LOCK_FILE
from penstock.streams.embedded.finding import FoundBroker, find
from penstock.streams.embedded.starting import find_or_start
from penstock.streams.kafka.plain import NotKafkaError
from penstock.streams.kafka.stream import KafkaStream
from penstock.streams.options import Options, options_of
from penstock.streams.url import Host, log_folder

logger = logging.getLogger(__name__)

_PING_S: Final = 60.0
"""Much less than `connections.max.idle.ms`, after which the broker closes an idle connection."""
_LOOK_AGAIN_S: Final = 0.5


class EmbeddedBrokerKeeper:
    """Holds one idle connection to the broker, in a thread of its own, while the log is in use.

    The connection keeps the broker from stopping as idle, and tells at once when the broker dies. A broker that stops
    when idle was started for its clients, so they start it again on the same port, where librdkafka retries what is in
    flight.
    """

    def __init__(self, folder: Path, found: FoundBroker, options: Options) -> None:
        self._folder = folder
        self._found = found
        self._options = options
        self._on_problem: Callable[[str], None] | None = None
        self._stopping = threading.Event()
        self._wake_up, self._sleeper = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="penstock-broker-keeper", daemon=True)
        self._thread.start()

    def tell(self, on_problem: Callable[[str], None]) -> None:
        """Call this, in the thread of the keeper, when the broker can no longer be reached."""
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
        """Wait for the next ping or for an event. Returns whether the broker is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._found.connection.socket, selectors.EVENT_READ)
            selector.register(self._sleeper, selectors.EVENT_READ)
            ready = selector.select(_PING_S)
        if any(key.fileobj is self._sleeper for key, _ in ready):
            return False
        if ready:
            return True  # a broker sends nothing unasked, so the connection was closed
        try:
            return self._found.connection.cluster_id() != self._found.address.cluster_id
        except (OSError, NotKafkaError):
            return True

    def _replace(self) -> bool:
        """Find the broker again, or start it. Returns whether the connection can continue."""
        lost = self._found.address
        if not (self._folder / LOCK_FILE).exists():
            # A broker always leaves its lock file, so the folder was removed on purpose: do not create it again.
            self._give_up(
                f"the data folder {self._folder} was removed: connect again to create a new one", logging.INFO
            )
            return False
        try:
            found = self._start_again() if lost.exit_when_idle_s is not None else self._await_return()
        except PenstockError as error:
            self._give_up(f"the broker of {self._folder} has stopped and could not be restarted: {error}")
            return False
        if found is None:
            return False
        self._found = found
        if found.address.port != lost.port:
            port = found.address.port
            self._give_up(f"the broker of {self._folder} was restarted at another port, {port}: connect again")
            return False
        return True

    def _give_up(self, problem: str, level: int = logging.ERROR) -> None:
        logger.log(level, "%s", problem)
        if self._on_problem is not None:
            self._on_problem(problem)

    def _start_again(self) -> FoundBroker:
        lost = self._found.address
        assert lost.exit_when_idle_s is not None
        logger.warning("the broker of %s (process %d) is gone: restarting it", self._folder, lost.pid)
        deadline_s = time.monotonic() + self._options.connect_timeout_s
        return find_or_start(
            self._folder, exit_when_idle_s=lost.exit_when_idle_s, deadline_s=deadline_s, port=lost.port
        )

    def _await_return(self) -> FoundBroker | None:
        """Wait until the user restarts a broker that the user started. None if the keeper is closed first."""
        logger.warning("the broker of %s, which was started by hand, has stopped: waiting for it", self._folder)
        while not self._stopping.wait(_LOOK_AGAIN_S):
            found = find(self._folder)
            if found is not None:
                return found
        return None


def open_log(url: str, given: Mapping[str, Any]) -> KafkaStream:
    """The log in a folder of this machine. Finds its broker, or starts it."""
    folder = log_folder(url)
    assert folder is not None
    options = options_of(given)
    found = find_or_start(
        folder,
        exit_when_idle_s=options.exit_when_idle_s,
        deadline_s=time.monotonic() + options.connect_timeout_s,
    )
    keeper = EmbeddedBrokerKeeper(folder, found, options)
    bootstrap = str(Host(found.address.host, found.address.port))
    return KafkaStream(url, bootstrap, options, keeper, log_folder=folder)
