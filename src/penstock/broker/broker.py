"""The broker: the log, the coordinators and the paths of records, put together on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from kio.schema.errors import ErrorCode

from penstock.broker.clock import LoopClock
from penstock.broker.connection import SHUTTING_DOWN, Connection
from penstock.broker.fetch import FetchPath
from penstock.broker.groups import GroupCoordinator
from penstock.broker.handlers import HANDLERS
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.internal_topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Durability,
    StateTopic,
    TransactionPartitions,
    open_internal_topic,
)
from penstock.broker.produce import ProducePath
from penstock.broker.request import Fields, Handler, Request
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import Stats
from penstock.broker.syncing import Syncer
from penstock.broker.transactions import FileProducerIds, ProducerIdentity, TransactionCoordinator
from penstock.broker.versions import api_versions_fields
from penstock.broker.wire.schema import API_VERSIONS
from penstock.log.disk import Disk
from penstock.log.segment import Resources
from penstock.log.statefile import read_state, write_state
from penstock.log.store import TopicStore

logger = logging.getLogger(__name__)

NODE_ID: Final = 1
CLUSTER_FILE: Final = "cluster"
PRODUCER_IDS_FILE: Final = "producer-ids"
PARTING_TIMEOUT_S: Final = 5.0
"""How long a broker that stops waits for clients to read their last answers."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """How clients reach this broker: what Metadata tells them."""

    node_id: int
    host: str
    port: int


_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What the protocol allows as the name and the version of a client's software."""


def _api_versions(broker: Broker, request: Request) -> Fields:
    for name in ("client_software_name", "client_software_version"):
        software = request.get(name)
        if software is not None and not _SOFTWARE.fullmatch(software):
            return {"error_code": ErrorCode.invalid_request, "api_keys": []}
    return api_versions_fields()


class Broker:
    """One data folder, served. Make it on the event loop that it is to run on, then `await start()`."""

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
        self.connections: set[Connection] = set()
        self._closing = False
        self._parted = asyncio.Event()
        self.node = NodeAddress(NODE_ID, "127.0.0.1", 0)
        self.topics = TopicStore(
            data_folder,
            resources=Resources(disk, open_files=self.limits.open_files),
            broker_defaults=self.settings.overrides,
            internal_topics=INTERNAL_TOPICS,
        )
        self.cluster_id = _cluster_id(data_folder, self.topics.resources.disk)
        self.syncer = Syncer(self.loop)
        self.produce = ProducePath(self)
        self.fetch = FetchPath(self)
        self.handlers: dict[int, Handler] = {**HANDLERS, API_VERSIONS: _api_versions}
        durability = Durability(self.syncer, flushes)
        offsets = open_internal_topic(self.topics, OFFSETS_TOPIC, self.settings.offsets_topic_partitions)
        states = open_internal_topic(self.topics, TRANSACTIONS_TOPIC, self.settings.transactions_topic_partitions)
        self.groups = GroupCoordinator(
            StateTopic(offsets, self.clock, durability),
            self.clock,
            self.settings.groups,
            verify_transaction=self._verify_offsets,
        )
        self.transactions = TransactionCoordinator(
            StateTopic(states, self.clock, durability),
            TransactionPartitions(self.topics, self.clock, durability),
            FileProducerIds(data_folder / PRODUCER_IDS_FILE, self.topics.resources.disk),
            self.clock,
            offsets_partition_count=len(offsets.partitions),
            on_offsets_marked=self._offsets_marked,
            settings=self.settings.transactions,
        )
        self.housekeeping = Housekeeping(self)
        self.idle_since_s = self.clock.monotonic_s()

    async def start(self) -> None:
        """Load what the coordinators knew, finish what was decided, and start the housekeeping."""
        self.groups.load()
        await self.groups.forget_missing_topics(self.topics.is_known)
        await self.transactions.load()
        self._drop_orphaned_offsets()
        self.housekeeping.start()
        _report_recovery(self.topics)

    async def close(self) -> None:
        """Answer what was asked, let the clients go, and write everything down."""
        self._closing = True
        await self.housekeeping.close()
        for connection in list(self.connections):
            connection.drain()
        await self.groups.close()
        await self.transactions.close()
        await self._part_from_clients()
        self.syncer.close()
        self.topics.close()

    async def _part_from_clients(self) -> None:
        """Wait until everybody has got what was promised, but not for those who do not read it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PARTING_TIMEOUT_S):
                while self.connections:
                    self._parted.clear()
                    await self._parted.wait()
        for connection in list(self.connections):
            connection.close(SHUTTING_DOWN)

    def admit(self, connection: Connection) -> bool:
        if self._closing or len(self.connections) >= self.limits.max_connections:
            self.stats.refused_connections += 1
            return False
        self.connections.add(connection)
        self.stats.connections += 1
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.idle_since_s = self.clock.monotonic_s()
        self._parted.set()

    def _verify_offsets(self, transactional_id: str, producer_id: int, epoch: int, partition: int) -> ErrorCode:
        """Whether a producer may commit offsets in its transaction now."""
        return self.transactions.verify(
            transactional_id, ProducerIdentity(producer_id, epoch), OFFSETS_TOPIC, partition
        )

    def _drop_orphaned_offsets(self) -> None:
        """Abort offsets that wait for a transaction which the coordinator does not know: nobody else will end it."""
        for producer_id in self.groups.open_transactions():
            if not self.transactions.knows(producer_id):
                logger.warning("offsets of an unknown transaction (producer %d) are dropped", producer_id)
                self.groups.complete_transaction(producer_id, commit=False)

    def _offsets_marked(self, producer_id: int, *, commit: bool, partition: int) -> None:
        self.groups.complete_transaction(producer_id, commit, partition)


def _cluster_id(folder: Path, disk: Disk) -> str:
    content = read_state(folder / CLUSTER_FILE)
    if content is not None:
        return msgspec.json.decode(content, type=dict[str, str])["cluster_id"]
    cluster_id = uuid.uuid4().hex[:22]
    write_state(folder / CLUSTER_FILE, msgspec.json.encode({"cluster_id": cluster_id}), disk)
    return cluster_id


def _report_recovery(topics: TopicStore) -> None:
    report = topics.recovered
    if report.scanned_bytes or report.damaged:
        logger.info(
            "recovered %d bytes in %.3f s (%.2f s per GB), cut %d bytes of unfinished writes, found %d damaged places",
            report.scanned_bytes,
            report.seconds,
            report.seconds_per_gb,
            report.truncated_bytes,
            len(report.damaged),
            extra={"scanned_bytes": report.scanned_bytes, "truncated_bytes": report.truncated_bytes},
        )
