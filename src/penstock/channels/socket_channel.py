"""What channels on sockets share: a listening end with a thread, a sending end, and the channel that opens them."""

from __future__ import annotations

import abc
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from penstock.channels.datagram_socket import DropCount, unavailable
from penstock.channels.receive_buffer import ReceiveBuffer
from penstock.channels.socket_thread import SocketThread
from penstock.errors import PenstockError
from penstock.model import NewRecord, Record

logger = logging.getLogger(__name__)

_STOP_S: Final = 10.0


class SocketReceiver(abc.ABC):
    """Receives into a buffer from `start` to `close`, in a thread. It can be started again after an error of the
    network."""

    waits_for_room: bool = False
    """Something has arrived that goes into the buffer once that has room."""

    def __init__(self, shown: str, buffer: ReceiveBuffer) -> None:
        """`shown` is the address, for messages."""
        self.shown = shown
        self.buffer = buffer
        self.closing = threading.Event()
        self.dropped_by_system = DropCount()
        self._thread: SocketThread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_running

    @property
    def thread(self) -> SocketThread:
        assert self._thread is not None, "it is started"
        return self._thread

    @abc.abstractmethod
    def open_sockets(self) -> Mapping[socket.socket, Callable[[], None]]:
        """The sockets, each with the function to call when something has arrived. Raises BrokerUnavailableError or
        ConfigError."""

    @abc.abstractmethod
    def step(self) -> float:
        """Do other work of the thread. Returns the seconds until the next call."""

    def ended(self) -> None:
        """Called before the thread closes its sockets."""
        self.dropped_by_system.watch(None)

    def start(self) -> None:
        """Open the sockets and receive in a thread. BrokerUnavailableError or ConfigError if they cannot be opened."""
        sockets = self.open_sockets()
        self._thread = SocketThread(f"penstock-receiver-{self.shown}", self._step, self._failed)
        for each, read in sockets.items():
            self._thread.watch(each, read)
        self.buffer.report(None)
        self._thread.start()

    def tell_room(self) -> None:
        """Called when the buffer may have room again."""
        if self.waits_for_room:
            self.thread.wake()

    def close(self) -> None:
        self.closing.set()
        if self._thread is not None:
            self._thread.wake()
            self._thread.join(_STOP_S)

    def _step(self) -> float | None:
        if not self.closing.is_set():
            return self.step()
        self.ended()
        return None

    def _failed(self, error: OSError) -> None:
        self.ended()
        problem = unavailable(error, f"listening at {self.shown} ended")
        logger.warning("%s; the next call of listen begins again", problem)
        self.buffer.report(problem)


class SocketSender(Protocol):
    """The sending end."""

    def send(self, records: Sequence[NewRecord]) -> None: ...

    def close(self) -> None: ...


R = TypeVar("R", bound=SocketReceiver)
S = TypeVar("S", bound=SocketSender)


class SocketChannel(Generic[R, S]):
    """A channel on sockets, except for its features. Each end is opened when it is first used."""

    def __init__(
        self, name: str, capacity: int, new_receiver: Callable[[ReceiveBuffer], R], new_sender: Callable[[], S]
    ) -> None:
        """`capacity` is how many records wait for `listen`."""
        self._name = name
        self._buffer = ReceiveBuffer(name, capacity)
        self._new_receiver = new_receiver
        self._new_sender = new_sender
        self.receiver: R | None = None
        self.sender: S | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        receiver = self.receiver
        if receiver is None or not receiver.is_running:
            receiver = self._start_receiver()
        records = self._buffer.take(limit, wait_s)
        receiver.tell_room()
        return records

    def send(self, records: Sequence[NewRecord]) -> None:
        self._buffer.check_open()
        if not records:
            return
        sender = self.sender or self._open_sender()
        try:
            sender.send(records)
        except PenstockError:
            self._buffer.check_open()  # closed meanwhile
            raise

    def close(self) -> None:
        with self._lock:
            self._buffer.close()
            receiver, sender = self.receiver, self.sender
        if receiver is not None:
            receiver.close()
        if sender is not None:
            sender.close()

    def _start_receiver(self) -> R:
        with self._lock:
            self._buffer.check_open()
            if self.receiver is None:
                self.receiver = self._new_receiver(self._buffer)
            self.receiver.start()
            return self.receiver

    def _open_sender(self) -> S:
        with self._lock:
            self._buffer.check_open()
            if self.sender is None:
                self.sender = self._new_sender()
            return self.sender
