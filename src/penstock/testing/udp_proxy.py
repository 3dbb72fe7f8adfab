"""A UDP proxy that loses, repeats, delays and reorders datagrams on purpose."""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from typing import Any, Final

from penstock.model.closing import Closing

LOOPBACK: Final = "127.0.0.1"
_LONGEST_WAIT_S: Final = 0.2
_RELEASED_S: Final = 0.02
"""A datagram that is held back to be overtaken goes on after this time, even if none overtakes it."""


class UdpProxy(Closing):
    """Passes datagrams on from a port of loopback to a server, and answers back, as badly as it is told.

    - `loss`, `duplication`, `reordering`: the share of datagrams, from 0 to 1, that are lost, arrive twice, or arrive
      after the next one. They may be changed at any time. The same `seed` makes the same choices for the same datagrams
      in the same order.
    - `cut()`: everything is lost until `heal()`, which ends the other faults, too.
    - `lost`, `duplicated`, `reordered`, `passed`: how often it happened.

    To a server, each client seems to be a port of the proxy, where the server's answers go. The server may be a
    multicast group.

        with UdpProxy(5000, seed=7, loss=0.01) as proxy:
            channel = open_channel(f"udp://{proxy.address}")
    """

    def __init__(
        self,
        server_port: int,
        server_host: str = LOOPBACK,
        *,
        seed: int = 0,
        loss: float = 0.0,
        duplication: float = 0.0,
        reordering: float = 0.0,
    ) -> None:
        self.server = (server_host, server_port)
        self.loss = loss
        self.duplication = duplication
        self.reordering = reordering
        self.lost = self.duplicated = self.reordered = self.passed = 0
        self._random = random.Random(seed)
        self._is_cut = False
        self._closing = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._front = self._opened()
        self.port: int = self._front.getsockname()[1]
        self._backs: dict[Any, socket.socket] = {}
        """By client."""
        self._held: dict[socket.socket, tuple[float, bytes, Any]] = {}
        """By the socket to send it from: until when a datagram is held back, and where it goes."""
        self._thread = threading.Thread(target=self._run, name="udp-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def cut(self) -> None:
        """Lose everything until `heal`."""
        self._is_cut = True

    def heal(self) -> None:
        """Pass everything on, once and in order."""
        self.loss = self.duplication = self.reordering = 0.0
        self._is_cut = False

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _opened(self) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        opened.bind((LOOPBACK, 0))
        opened.setblocking(False)
        self._selector.register(opened, selectors.EVENT_READ)
        return opened

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                wait_s = _RELEASED_S if self._held else _LONGEST_WAIT_S
                for key, _ in self._selector.select(wait_s):
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)
                now_s = time.monotonic()
                for out in [each for each, (until_s, _, _) in self._held.items() if until_s <= now_s]:
                    self._release(out)
        finally:
            self._selector.close()
            for each in (self._front, *self._backs.values()):
                each.close()

    def _read(self, source: socket.socket) -> None:
        for _ in range(100):
            try:
                data, sender = source.recvfrom(65536)
            except BlockingIOError:
                return
            except ConnectionError:  # what was passed on before reached nobody
                continue
            if source is self._front:
                if sender not in self._backs:
                    self._backs[sender] = self._opened()
                self._pass_on(data, self._backs[sender], self.server)
            else:
                client = next(each for each, back in self._backs.items() if back is source)
                self._pass_on(data, self._front, client)

    def _pass_on(self, data: bytes, out: socket.socket, target: Any) -> None:
        chance = self._random.random
        if chance() < self.loss or self._is_cut:
            self.lost += 1
            return
        if chance() < self.reordering and out not in self._held:
            self._held[out] = (time.monotonic() + _RELEASED_S, data, target)
            self.reordered += 1
            return
        self._send(data, out, target)
        if chance() < self.duplication:
            self.duplicated += 1
            self._send(data, out, target)
        self._release(out)

    def _release(self, out: socket.socket) -> None:
        """What was held back goes on, after the datagram that overtook it."""
        held = self._held.pop(out, None)
        if held is not None:
            self._send(held[1], out, held[2])

    def _send(self, data: bytes, out: socket.socket, target: Any) -> None:
        try:
            out.sendto(data, target)
            self.passed += 1
        except OSError:  # the network has no room, or refuses it: lost
            self.lost += 1
