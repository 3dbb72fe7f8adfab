"""A broker in a thread of the test's own process, where the test can give it a disk that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.broker.broker import DEFAULT_NODE_ID, Broker, NodeAddress
from penstock.broker.connection import Connection
from penstock.broker.settings import BrokerSettings
from penstock.log.disk import Disk

TIMEOUT_S: Final = 20.0


class BrokerInThread:
    """Serves a folder on a real socket, on an event loop of its own, until it is left."""

    def __init__(self, folder: Path, disk: Disk | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.port = 0
        self._folder = folder
        self._disk = disk
        self._settings = BrokerSettings.parse(settings or {})
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S), "the broker did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the broker did not stop"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # handed over to the test, which raises it
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        broker = Broker(self._folder, disk=self._disk, settings=self._settings)
        server = await self._loop.create_server(lambda: Connection(broker), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        broker.node = NodeAddress(DEFAULT_NODE_ID, "127.0.0.1", self.port)
        await broker.start()
        self._ready.set()
        await self._stopped.wait()
        server.close()
        await broker.close()
