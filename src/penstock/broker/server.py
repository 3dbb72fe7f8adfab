"""Starting and stopping a broker process."""

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
from penstock.broker.address import FILE_NAME, BrokerAddress, last_address, remove_address, write_address
from penstock.broker.broker import Broker, NodeAddress
from penstock.broker.connection import Connection
from penstock.broker.metrics import serve_metrics
from penstock.broker.settings import BrokerSettings
from penstock.errors import BrokerUnavailableError, ConfigError, StorageError
from penstock.model.addresses import METRICS_EXPOSE, check_exposure

logger = logging.getLogger(__name__)

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})
_BACKLOG: Final = 512
_LOOK_AT_FOLDER_S: Final = 1.0
"""How often a broker checks that its data folder and address file still exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    data_folder: Path
    host: str = "127.0.0.1"
    port: int = 9092
    """0 takes a free port."""
    advertised: tuple[str, int] | None = None
    """The host and port told to clients, if they differ from the listening ones."""
    metrics: tuple[str, int] | None = None
    insecure: bool = False
    """Whether other machines may reach the broker and its metrics, which have no login."""
    flushes: bool = True
    settings: BrokerSettings = field(default_factory=BrokerSettings)
    exit_when_idle_s: float | None = None
    """Stop after this long without a connection."""

    def __post_init__(self) -> None:
        self._check_exposure("--listen", (self.host, self.port), "read, change and delete everything in the log")
        if self.metrics is not None:
            self._check_exposure("--metrics", self.metrics, METRICS_EXPOSE)
        if self.host in _WILDCARDS and self.advertised is None:
            raise ConfigError(
                f"listening on {self.host or 'every address'} needs an address that clients can connect to: "
                "add --advertise HOST:PORT"
            )
        if self.advertised is not None and self.advertised[0] in _WILDCARDS:
            raise ConfigError(
                f"--advertise {self.advertised[0]}:{self.advertised[1]} is not an address that clients can connect to: "
                "name this machine as they know it"
            )

    def _check_exposure(self, option: str, address: tuple[str, int], exposes: str) -> None:
        host, port = address
        check_exposure(
            host,
            what=f"{option} {host}:{port}",
            exposes=exposes,
            allow="add --insecure",
            insecure=self.insecure,
        )


async def serve(options: ServeOptions, on_ready: Callable[[BrokerAddress], None]) -> None:
    """Serve the folder until SIGTERM or SIGINT, or until idle for too long. `on_ready` gets the address."""
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
        broker.node = NodeAddress(broker.node.node_id, advertised_host, advertised_port or port)
        await broker.start()
        metrics = None
        if options.metrics is not None:
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
        is_published = _publish_address(options.data_folder, address)
        stack.callback(remove_address, options.data_folder, address)
        _calm_garbage_collector()
        on_ready(address)
        await _until_stopped(broker, stopped, address, is_published=is_published)


def _publish_address(folder: Path, address: BrokerAddress) -> bool:
    """Write the address file. On a full disk, clients that know the address can still read."""
    try:
        write_address(folder, address)
    except OSError as error:
        (folder / FILE_NAME).unlink(missing_ok=True)  # it may be from an earlier broker
        logger.warning("%s: the address file could not be written: %s", folder, error.strerror)
        return False
    return True


async def _until_stopped(broker: Broker, stopped: asyncio.Event, address: BrokerAddress, *, is_published: bool) -> None:
    """Wait for a signal or for the idle limit, and check the data folder meanwhile."""
    idle_limit_s = address.exit_when_idle_s
    look_again_s = _LOOK_AT_FOLDER_S if idle_limit_s is None else min(_LOOK_AT_FOLDER_S, idle_limit_s / 5)
    looks_without_address = 0
    while not stopped.is_set():
        if not broker.topics.is_ours():
            broker.topics.abandon()
            raise StorageError(
                f"the data folder {broker.data_folder} was removed or replaced while this broker (process "
                f"{address.pid}) served it: the broker stops. Start another one for the current folder"
            )
        is_missing = is_published and last_address(broker.data_folder) is None
        looks_without_address = looks_without_address + 1 if is_missing else 0
        if looks_without_address > 1:  # at the first look, the whole folder may be about to be removed
            logger.warning("%s was removed; it is written again", broker.data_folder / FILE_NAME)
            is_published = _publish_address(broker.data_folder, address)
        if idle_limit_s is not None and _idle_s(broker) >= idle_limit_s:
            logger.info("no client for %g s: stopping", idle_limit_s)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), look_again_s)


def _idle_s(broker: Broker) -> float:
    return 0.0 if broker.connections else broker.clock.monotonic_s() - broker.idle_since_s


def _reason(error: OSError) -> str:
    """The operating system's message. asyncio's own repeats the address, and differs between versions."""
    return os.strerror(error.errno) if error.errno else str(error)


def _calm_garbage_collector() -> None:
    """Exclude what startup created from garbage collection: it lives as long as the process, and scanning it costs
    latency."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
