"""Run as a program: the network of a cluster without namespaces, of one proxy for each listener of each broker.

    python -m penstock.cluster.proxies FOLDER

Brokers advertise the addresses of their proxies, so every connection of a peer and of a client passes here. Peers have
a listener of their own; which broker a connection to it, or to a controller, comes from is looked up in /proc: which
process has the socket at its other end. `cluster.json` of the folder says who is isolated from whom. On a connection
that is cut, nothing is passed on in either direction until it is healed, as if the cable were pulled; one that is
opened meanwhile is accepted and hangs. The program writes the version of `cluster.json` that it obeys to
`proxies.version`, and ends when that file is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.cluster.networks import SOCKET_TABLES, CutOff

STATE: Final = "cluster.json"
OBEYED: Final = "proxies.version"
LOOK_S: Final = 0.02
CHUNK_BYTES: Final = 1 << 16
_LOCAL_COLUMN: Final = 1
_INODE_COLUMN: Final = 9


class ProxiedBroker(msgspec.Struct):
    """A broker, as far as its proxies need to know it."""

    number: int
    host: str
    port: int
    controller_port: int
    own_port: int
    own_controller_port: int
    peer_port: int
    own_peer_port: int
    pid: int
    isolated_from: CutOff | None = None


class ProxiedCluster(msgspec.Struct):
    """What `cluster.json` says."""

    version: int
    brokers: list[ProxiedBroker]


def is_cut(source: int | None, target: int, isolated: Mapping[int, CutOff | None]) -> bool:
    """Whether nothing passes between a broker and another one, or a client, which is None."""
    if source == target:
        return False
    if source is None:
        return isolated.get(target) in ("clients", "all")
    return isolated.get(target) in ("peers", "all") or isolated.get(source) in ("peers", "all")


def owner_of(port: int, pids: Mapping[int, int]) -> int | None:
    """Which of these processes, by the numbers of their brokers, has the socket with this local port."""
    inode = _inode_of(port)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for number, pid in pids.items():
        with contextlib.suppress(OSError):  # it has ended
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # it has just closed this one
                    if os.readlink(entry.path) == wanted:
                        return number
    return None


def _inode_of(port: int) -> str | None:
    ending = f":{port:04X}"
    for table in SOCKET_TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                columns = line.split()
                if columns[_LOCAL_COLUMN].endswith(ending) and columns[_INODE_COLUMN] != "0":
                    return columns[_INODE_COLUMN]
    return None


@dataclass(frozen=True, slots=True)
class Link:
    """From a broker, or a client (None), to a broker."""

    source: int | None
    target: int


class Proxies:
    """All of them, in one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wiring = self._read()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until `cluster.json` is gone."""
        servers = []
        for broker in self._wiring.brokers:
            for port, own_port, is_for_clients in (
                (broker.port, broker.own_port, True),
                (broker.controller_port, broker.own_controller_port, False),
                (broker.peer_port, broker.own_peer_port, False),
            ):
                accept = self._accepter(broker.number, own_port, is_for_clients)
                servers.append(await asyncio.start_server(accept, broker.host, port))
        seen = (0, 0)
        while True:  # ends with the file
            try:
                now = (self._folder / STATE).stat()
                if (now.st_ino, now.st_mtime_ns) != seen:
                    seen = (now.st_ino, now.st_mtime_ns)
                    await self._obey(self._read())
            except FileNotFoundError:
                break
            await asyncio.sleep(LOOK_S)
        for server in servers:
            server.close()
        (self._folder / OBEYED).unlink(missing_ok=True)

    def _read(self) -> ProxiedCluster:
        return msgspec.json.decode((self._folder / STATE).read_bytes(), type=ProxiedCluster)

    async def _obey(self, wiring: ProxiedCluster) -> None:
        async with self._changed:
            self._wiring = wiring
            self._changed.notify_all()
        fresh = self._folder / f"{OBEYED}.fresh"
        fresh.write_text(str(wiring.version))
        fresh.rename(self._folder / OBEYED)

    def _accepter(
        self, number: int, own_port: int, is_for_clients: bool
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                source = None if is_for_clients else await self._source_of(writer)
                await self._serve(Link(source, number), own_port, reader, writer)
            finally:
                self._tasks.discard(task)

        return accept

    async def _source_of(self, writer: asyncio.StreamWriter) -> int | None:
        with contextlib.suppress(OSError):
            self._wiring = self._read()  # a broker may have become another process
        pids = {broker.number: broker.pid for broker in self._wiring.brokers if broker.pid}
        return await asyncio.to_thread(owner_of, writer.get_extra_info("peername")[1], pids)

    async def _serve(
        self, link: Link, own_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._wait_until_whole(link)
        host = self._wiring.brokers[link.target - 1].host
        try:
            to_broker = await asyncio.open_connection(host, own_port)
        except OSError:
            writer.transport.abort()  # as near to a refused connection as an accepted one comes
            return
        for each in (writer, to_broker[1]):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(self._pass_on(link, reader, to_broker[1]), self._pass_on(link, to_broker[0], writer))

    async def _pass_on(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one side has closed. What is read while the link is cut is kept, and nothing more is read."""
        while True:  # ends with the connection
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            await self._wait_until_whole(link)
            if not data:
                writer.close()
                return
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                writer.close()
                return

    async def _wait_until_whole(self, link: Link) -> None:
        if self._is_whole(link):
            return
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_whole(link))

    def _is_whole(self, link: Link) -> bool:
        return not is_cut(link.source, link.target, {each.number: each.isolated_from for each in self._wiring.brokers})


if __name__ == "__main__":
    asyncio.run(Proxies(Path(sys.argv[1])).run())
