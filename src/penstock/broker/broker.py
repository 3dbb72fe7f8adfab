"""The broker: the log, the coordinators and the request paths on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from kio.schema.errors import ErrorCode

from penstock.broker.connection import SHUTTING_DOWN, Connection
from penstock.broker.contracts import OFFSETS_TOPIC, Clock
from penstock.broker.dynamic_configs import DynamicConfigs
from penstock.broker.fetch import FetchPath
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.handlers import APIS
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.internal_topics import (
    INTERNAL_TOPICS,
    TRANSACTIONS_TOPIC,
    Durability,
    StateTopic,
    open_internal_topic,
    write_markers,
)
from penstock.broker.limits import Limits, RequestMemory
from penstock.broker.produce import ProducePath
from penstock.broker.request import Fields, Handler, Request, finished
from penstock.broker.settings import BrokerSettings
from penstock.broker.syncing import Syncer
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.producer_ids import FileProducerIds
from penstock.broker.transactions.states import ProducerIdentity
from penstock.broker.versions import api_versions_fields
from penstock.broker.wire.schema import API_VERSIONS
from penstock.errors import ConfigError, PenstockError
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.disk import Disk
from penstock.log.segment import Resources
from penstock.log.statefile import read_state, write_state
from penstock.log.store import TopicStore


class LoopClock:
    """`contracts.Clock` on asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)


@dataclass(slots=True)
class Stats:
    requests: Counter[int] = field(default_factory=Counter)
    """By API key."""
    produced_bytes: int = 0
    fetched_bytes: int = 0
    refused_connections: int = 0
    connections: int = 0
    """Connections ever accepted."""
    compactions: int = 0
    segments_deleted: int = 0


logger = logging.getLogger(__name__)

BURST_LINES: Final = 50
"""How many lines may be logged at once; further ones are rate-limited."""
LINES_A_SECOND: Final = 1.0


class ClientErrors:
    """Logs refused requests and closed connections, rate-limited. The next line says how many were left out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowed = float(BURST_LINES)
        self._since_s = clock.monotonic_s()
        self._left_out = 0

    def warn(self, host: str, text: str) -> None:
        self._log(logging.WARNING, host, text, None)

    def failed(self, host: str, text: str, error: BaseException) -> None:
        self._log(logging.ERROR, host, text, error)

    def _log(self, level: int, host: str, text: str, error: BaseException | None) -> None:
        now_s = self._clock.monotonic_s()
        self._allowed = min(BURST_LINES, self._allowed + (now_s - self._since_s) * LINES_A_SECOND)
        self._since_s = now_s
        if self._allowed < 1:
            self._left_out += 1
            return
        self._allowed -= 1
        more = f" ({self._left_out} more lines about clients were left out)" if self._left_out else ""
        self._left_out = 0
        logger.log(level, "client %s: %s%s", host, text, more, exc_info=error, extra={"host": host})


DEFAULT_NODE_ID: Final = 1
CLUSTER_FILE: Final = "cluster"
PRODUCER_IDS_FILE: Final = "producer-ids"
_RATE_FROM_BYTES: Final = 100_000_000
"""A smaller recovery says nothing about how long a large one takes."""
DRAIN_TIMEOUT_S: Final = 5.0
"""How long a stopping broker waits for clients to read their last responses."""
LIMIT_REPORT_INTERVAL_S: Final = 10.0
SPARE_HANDLES: Final = 64
"""File handles for anything but connections and segments."""
LARGE_REQUESTS: Final = 2
WAITS_FOR_OTHERS: Final = frozenset({11, 14})
"""JoinGroup and SyncGroup are answered when the other members have joined."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """How clients reach this broker, as Metadata tells them."""

    node_id: int
    host: str
    port: int


_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The names and versions of client software that the protocol allows."""


def _api_versions(broker: Broker, request: Request) -> Fields:
    for name in ("client_software_name", "client_software_version"):
        software = request.get(name)
        if software is not None and not _SOFTWARE.fullmatch(software):
            return {"error_code": ErrorCode.invalid_request, "api_keys": []}
    return api_versions_fields()


class Broker:
    """Serves one data folder. Create it on its event loop, then `await start()`."""

    def __init__(
        self,
        data_folder: Path,
        *,
        settings: BrokerSettings | None = None,
        flushes: bool = True,
        disk: Disk | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.data_folder = data_folder
        self.settings = settings or BrokerSettings()
        self.limits = self.settings.limits
        self.flushes = flushes
        """Whether `acks=all` waits for the disk."""
        self.stats = Stats()
        self.client_errors = ClientErrors(self.clock)
        self.connections: set[Connection] = set()
        self.request_memory = RequestMemory(self.limits.queued_bytes, self.clock)
        self._max_connections = _connections_with_handles(self.limits)
        self._large_requests = asyncio.Semaphore(LARGE_REQUESTS)
        self._turned_away = 0
        self._next_limit_report_s = 0.0
        self._closing = False
        self._connection_closed = asyncio.Event()
        self.topics = TopicStore(
            data_folder,
            resources=Resources(disk, open_files=self.limits.open_files),
            broker_defaults=self.settings.overrides,
            internal_topics=INTERNAL_TOPICS,
        )
        is_new = self.topics.is_new
        try:
            self._open_configs(is_new=is_new)
        except BaseException:
            self.topics.close()
            raise
        self.syncer = Syncer(self.loop)
        self.produce = ProducePath(self)
        self.fetch = FetchPath(self)
        self.handlers: dict[int, Handler] = {key: handler for key, (handler, _, _) in APIS.items()}
        self.handlers[API_VERSIONS] = _api_versions
        durability = Durability(self.syncer, flushes)
        offsets = open_internal_topic(self.topics, OFFSETS_TOPIC, self.settings.offsets_topic_partitions)
        states = open_internal_topic(self.topics, TRANSACTIONS_TOPIC, self.settings.transactions_topic_partitions)
        self.groups = GroupCoordinator(
            StateTopic(offsets, self.clock, durability),
            self.clock,
            self.settings.groups,
            verify_transaction=self._verify_offsets,
        )
        producer_ids = FileProducerIds(
            data_folder / PRODUCER_IDS_FILE, self.topics.resources.disk, highest_known=self._highest_producer_id
        )
        if is_new and not (data_folder / PRODUCER_IDS_FILE).exists():
            producer_ids.create()
        self.transactions = TransactionCoordinator(
            StateTopic(states, self.clock, durability),
            partial(write_markers, self.topics, self.clock, durability),
            producer_ids,
            self.clock,
            offsets_partition_count=len(offsets.partitions),
            on_offsets_marked=self.groups.complete_transaction,
            settings=self.settings.transactions,
        )
        self.offsets_without_topic: set[str] = set()
        """Topics that groups have read and that no longer exist although nobody deleted them."""
        self._dropping = asyncio.Lock()
        self._drop_tasks: set[asyncio.Task[None]] = set()
        self.housekeeping = Housekeeping(self)
        self.idle_since_s = self.clock.monotonic_s()

    def _open_configs(self, *, is_new: bool) -> None:
        disk = self.topics.resources.disk
        self.cluster_id, node_id = _identity(self.data_folder, disk, self.settings.node_id, is_new=is_new)
        self.node = NodeAddress(node_id, "127.0.0.1", 0)
        self.configs = DynamicConfigs(self.data_folder, disk, node_id, self.settings.overrides)
        self._use_configs(self.configs.effective())

    def change_configs(self, name: str, overrides: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the dynamic settings of this broker, or of all brokers (the empty name). Raises ConfigError, and
        changes nothing, if they are not allowed."""
        effective = self.configs.preview(name, overrides)
        for topic in map(self.topics.get, self.topics.names()):
            TopicConfig.parse(topic.overrides if topic else {}, effective)
        if not validate_only and overrides != self.configs.layer(name):
            self.configs.store(name, overrides)
            self._use_configs(effective)

    def _use_configs(self, effective: Mapping[str, str]) -> None:
        if effective != self.settings.overrides:
            self.settings = self.settings.updated(effective)
            self.limits = self.settings.limits
            self._max_connections = _connections_with_handles(self.limits)
            self.topics.set_broker_defaults(effective)

    async def start(self) -> None:
        """Load the coordinators' state, finish what was decided, and start the housekeeping."""
        self.groups.load()
        for name in self.topics.being_deleted():
            await self._try_to_drop_old_offsets(name)
        self._report_offsets_without_topic()
        await self.transactions.load()
        self._drop_orphaned_offsets()
        self.housekeeping.start()
        _report_recovery(self.topics)

    def has_old_offsets(self, name: str) -> bool:
        """Whether groups have offsets of an earlier topic of this name. See `drop_old_offsets`."""
        return name in self.topics.being_deleted() or (
            name in self.offsets_without_topic and not self.topics.is_known(name)
        )

    async def drop_old_offsets(self, name: str) -> None:
        """Drop the offsets of an earlier topic, so that a new topic of that name is not read from the old offsets.

        Called when a topic is deleted or about to be created, never because one is missing: its files may have been
        lost, and may be restored.
        """
        async with self._dropping:
            if not self.has_old_offsets(name):
                return
            await self.groups.forget_topic(name)
            if name in self.topics.being_deleted():
                self.topics.deletion_finished(name)
            else:
                logger.warning("topic %s is created again; the offsets of the earlier one were dropped", name)
                self.offsets_without_topic.discard(name)

    def drop_old_offsets_soon(self, name: str) -> None:
        """The same for callers that cannot wait."""
        task = self.loop.create_task(self._try_to_drop_old_offsets(name))
        self._drop_tasks.add(task)
        task.add_done_callback(self._drop_tasks.discard)

    async def _try_to_drop_old_offsets(self, name: str) -> None:
        try:
            await self.drop_old_offsets(name)
        except PenstockError as error:
            logger.warning("the offsets of the deleted topic %s could not be dropped: %s", name, error)

    def _report_offsets_without_topic(self) -> None:
        self.offsets_without_topic = {name for name in self.groups.topics() if not self.topics.is_known(name)}
        if self.offsets_without_topic:
            logger.warning(
                "groups have committed offsets for topics that do not exist, and were not deleted: %s. They are kept "
                "until such a topic is created again, or until they expire.",
                ", ".join(sorted(self.offsets_without_topic)),
            )

    async def close(self) -> None:
        """Answer pending requests, close the connections, and store everything."""
        self._closing = True
        await self.housekeeping.close()
        await asyncio.gather(*self._drop_tasks)
        for connection in list(self.connections):
            connection.drain()
        await self.groups.close()
        await self.transactions.close()
        await self._wait_for_clients()
        self.syncer.close()
        self.topics.close()

    async def _wait_for_clients(self) -> None:
        """Wait until all clients have received their responses, except those that do not read."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self.connections:
                    self._connection_closed.clear()
                    await self._connection_closed.wait()
        for connection in list(self.connections):
            connection.close(SHUTTING_DOWN, routine=True)

    def admit(self, connection: Connection) -> None:
        """Accept a connection, or close it. At the limit, the one that has been idle the longest is closed."""
        if self._closing:
            self.stats.refused_connections += 1
            connection.close(SHUTTING_DOWN, routine=True)
            return
        if len(self.connections) >= self._max_connections:
            idle = [each for each in self.connections if not each.has_open_requests]
            out = min(idle, key=lambda each: each.last_active_s, default=connection)
            self.stats.refused_connections += 1
            self._report_limit()
            out.close("too many connections (max.connections)", routine=True)
            self.connections.discard(out)
            if out is connection:
                return
        self.connections.add(connection)
        self.stats.connections += 1

    def _report_limit(self) -> None:
        self._turned_away += 1
        now_s = self.clock.monotonic_s()
        if now_s >= self._next_limit_report_s:
            logger.warning(
                "%d connections are open, and no more are allowed (max.connections): %d since the last such line were "
                "closed to make room, those idle the longest first, or rejected. Raise max.connections, or look "
                "for clients that leave connections open",
                len(self.connections),
                self._turned_away,
            )
            self._next_limit_report_s = now_s + LIMIT_REPORT_INTERVAL_S
            self._turned_away = 0

    async def answer_large(self, request: Request) -> bytes:
        """Answer a long request: decode and encode it in a thread, and process it in slices.

        Only a few at a time, because decoded parts take many times the memory of the bytes. Requests that wait for
        other clients do not count.
        """
        async with self._large_requests:
            decoded = await asyncio.to_thread(request.decoded, self.limits.request_entries)
            if request.api_key not in WAITS_FOR_OTHERS:
                return await self._answer_decoded(decoded)
        return await self._answer_decoded(decoded)

    async def _answer_decoded(self, request: Request) -> bytes:
        answer = await finished(self.handlers[request.api_key](self, request))
        return await asyncio.to_thread(request.encoded, answer)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.idle_since_s = self.clock.monotonic_s()
        self._connection_closed.set()

    def _verify_offsets(self, transactional_id: str, producer_id: int, epoch: int, partition: int) -> ErrorCode:
        return self.transactions.verify(
            transactional_id, ProducerIdentity(producer_id, epoch), OFFSETS_TOPIC, partition
        )

    def _highest_producer_id(self) -> int:
        in_partitions = (log.producers.highest_id() for log in self.topics.partitions())
        return max(self.transactions.slots.highest_producer_id(), *in_partitions)

    def _drop_orphaned_offsets(self) -> None:
        """Abort offsets of a transaction that the coordinator does not know: nothing else would end it."""
        for producer_id in self.groups.open_transactions():
            if not self.transactions.slots.knows(producer_id):
                logger.warning("offsets of an unknown transaction (producer %d) are dropped", producer_id)
                self.groups.complete_transaction(producer_id, commit=False)


def _connections_with_handles(limits: Limits) -> int:
    """The connection limit: that of the settings, if the system allows enough file handles."""
    needed = limits.max_connections + limits.open_files + SPARE_HANDLES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.max_connections
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= needed:
        return limits.max_connections
    allowed = max(1, soft - limits.open_files - SPARE_HANDLES)
    logger.warning(
        "the system allows this process %d open files: only %d connections are accepted, not the %d of "
        "max.connections. Raise the limit (ulimit -n), or lower log.open.files.max",
        soft,
        allowed,
        limits.max_connections,
    )
    return allowed


def _identity(folder: Path, disk: Disk, node_id: int | None, *, is_new: bool) -> tuple[str, int]:
    """The ids of the cluster and of this broker: those in the folder, or new ones. `node_id` is the requested one, if
    any; raises ConfigError if the folder belongs to another."""
    content = read_state(folder / CLUSTER_FILE)
    known = msgspec.json.decode(content, type=dict[str, str]) if content is not None else {}
    stored = known.get("node_id")
    if stored is not None and node_id is not None and int(stored) != node_id:
        raise ConfigError(
            f"node.id={node_id}, but the data in {folder} belong to node {stored}: "
            f"omit node.id, use {stored}, or choose another folder"
        )
    if stored is None:
        stored = str(DEFAULT_NODE_ID if node_id is None else node_id)
        known = {"cluster_id": known.get("cluster_id", uuid.uuid4().hex[:22]), "node_id": stored}
        write_state(folder / CLUSTER_FILE, msgspec.json.encode(known), disk)
    if content is None and not is_new:
        logger.warning(
            "%s is missing: the cluster id is %s from now on. Clients and Spark queries that remember the old one see "
            "another cluster; stop the broker and restore the file from a copy if there is one.",
            folder / CLUSTER_FILE,
            known["cluster_id"],
        )
    return known["cluster_id"], int(stored)


def _report_recovery(topics: TopicStore) -> None:
    report = topics.recovered
    if report.scanned_bytes or report.damaged:
        rate = f" ({report.seconds_per_gb:.1f} s per GB)" if report.scanned_bytes >= _RATE_FROM_BYTES else ""
        logger.info(
            "recovered: checked %d bytes in %.3f s%s, cut off %d bytes of unfinished writes, found %d damaged places",
            report.scanned_bytes,
            report.seconds,
            rate,
            report.truncated_bytes,
            len(report.damaged),
            extra={"scanned_bytes": report.scanned_bytes, "truncated_bytes": report.truncated_bytes},
        )
