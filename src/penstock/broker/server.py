"""Listening, and stopping: the life of a broker's process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock import __version__
from penstock.broker.address import BrokerAddress, remove_address, write_address
from penstock.broker.broker import NODE_ID, Broker, NodeAddress
from penstock.broker.connection import Connection
from penstock.broker.settings import BrokerSettings
from penstock.errors import BrokerUnavailableError, ConfigError, StorageError

logger = logging.getLogger(__name__)

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})
_BACKLOG: Final = 512
_IDLE_CHECKS_PER_LIMIT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    data_folder: Path
    host: str = "127.0.0.1"
    port: int = 9092
    """0 takes a free port."""
    advertised: tuple[str, int] | None = None
    """Host and port that clients are told, where they differ from those listened on."""
    metrics: tuple[str, int] | None = None
    flushes: bool = True
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    exit_when_idle_s: float | None = None
    """Stop once there has been no connection for so long."""

    def __post_init__(self) -> None:
        if self.host in _WILDCARDS and self.advertised is None:
            raise ConfigError(
                f"listening on {self.host or 'every address'} needs an address that clients can connect to: "
                "add --advertise HOST:PORT"
            )


async def serve(options: ServeOptions, on_ready: Callable[[BrokerAddress], None]) -> None:
    """Serve the folder until SIGTERM or SIGINT, or until idle for too long. `on_ready` hears where it listens."""
    try:
        broker = Broker(options.data_folder, settings=options.settings, flushes=options.flushes)
    except OSError as error:
        raise StorageError(f"the log in {options.data_folder} cannot be opened: {error}") from error
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        try:
            server = await loop.create_server(
                lambda: Connection(broker), options.host, options.port, backlog=_BACKLOG, start_serving=False
            )
        except OSError as error:
            raise BrokerUnavailableError(
                f"cannot listen on {options.host}:{options.port}: {_reason(error)}. Choose another --listen, "
                "or HOST:0 for a free port"
            ) from error
        stack.callback(server.close)
        host, port = server.sockets[0].getsockname()[:2]
        advertised_host, advertised_port = options.advertised or (host, port)
        broker.node = NodeAddress(NODE_ID, advertised_host, advertised_port or port)
        await broker.start()
        metrics = None
        if options.metrics is not None:
            from penstock.broker.metrics import serve_metrics

            metrics = await serve_metrics(broker, *options.metrics, stack)
        await server.start_serving()
        address = BrokerAddress(
            pid=os.getpid(),
            host=host,
            port=port,
            metrics=metrics,
            version=__version__,
            cluster_id=broker.cluster_id,
            exit_when_idle_s=options.exit_when_idle_s,
        )
        _publish_address(options.data_folder, address)
        stack.callback(remove_address, options.data_folder)
        _calm_garbage_collector()
        on_ready(address)
        await _until_stopped(broker, stopped, options.exit_when_idle_s)


def _publish_address(folder: Path, address: BrokerAddress) -> None:
    """Say where to find the broker. On a full disk it can still be read from, by those who know where it is."""
    try:
        write_address(folder, address)
    except OSError as error:
        remove_address(folder)
        logger.warning("%s: where this broker listens could not be written down: %s", folder, error.strerror)


async def _until_stopped(broker: Broker, stopped: asyncio.Event, idle_limit_s: float | None) -> None:
    if idle_limit_s is None:
        await stopped.wait()
        return
    while not stopped.is_set():
        if not broker.connections and broker.clock.monotonic_s() - broker.idle_since_s >= idle_limit_s:
            logger.info("no client for %g s: stopping", idle_limit_s)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), idle_limit_s / _IDLE_CHECKS_PER_LIMIT)


def _reason(error: OSError) -> str:
    """What the operating system says. asyncio's own words repeat the address, and differ from version to version."""
    return os.strerror(error.errno) if error.errno else str(error)


def _calm_garbage_collector() -> None:
    """What was made while starting lives as long as the process: looking through it again and again is latency."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
