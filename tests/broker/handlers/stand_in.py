"""A broker as the handlers see it: real topics in a folder, real settings, no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from penstock.broker.broker import Broker
from penstock.broker.dynamic_configs import DynamicConfigs
from penstock.broker.handlers import admin, configs, metadata, partitions, refused
from penstock.broker.request import Apis, Handler, Request, finished
from penstock.broker.settings import BrokerSettings
from penstock.broker.wire.schema import encode_response
from penstock.log.disk import Disk
from penstock.log.store import TopicStore
from tests.broker.handlers.entities import read_response, request_entity
from tests.log.batches import Batch, Record, consecutive, encode

MODULES = (admin, configs, metadata, partitions, refused)
APIS: Apis = {key: api for module in MODULES for key, api in module.APIS.items()}
HANDLERS: dict[int, Handler] = {key: handler for key, (handler, _, _) in APIS.items()}
VERSIONS: dict[int, tuple[int, int]] = {key: (low, high) for key, (_, low, high) in APIS.items()}

CLUSTER_ID = "cluster-of-one"
NODE_ID = 7
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True)
class Node:
    node_id: int = NODE_ID
    host: str = "127.0.0.1"
    port: int = 9092


@dataclass
class Groups:
    forgotten: list[str] = field(default_factory=list)

    async def forget_topic(self, name: str) -> None:
        await asyncio.sleep(0)
        self.forgotten.append(name)


class StandIn:
    """Ask it with `ask`; what comes back has been through the broker's encoder and kio's decoder."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.data_folder = folder
        self._closed = False
        self.settings = BrokerSettings.parse(settings)
        self.topics = TopicStore(folder, broker_defaults=self.settings.overrides, internal_topics=INTERNAL)
        self.limits = self.settings.limits
        self.node = Node()
        self.configs = DynamicConfigs(folder, Disk(), NODE_ID, self.settings.overrides)
        self.cluster_id = CLUSTER_ID
        self.groups = Groups()
        self.former: set[str] = set()
        self.soon: list[str] = []
        """Topics that are forgotten once the request is answered."""

    def has_old_offsets(self, name: str) -> bool:
        return name in self.former or name in self.topics.being_deleted()

    async def drop_old_offsets(self, name: str) -> None:
        if self.has_old_offsets(name):
            await self.groups.forget_topic(name)
            self.former.discard(name)
            if name in self.topics.being_deleted():
                self.topics.deletion_finished(name)

    def drop_old_offsets_soon(self, name: str) -> None:
        self.soon.append(name)

    def ask(self, api_key: int, version: int | None = None, /, **fields: Any) -> Any:
        """The answer to a request of the newest version, or of the given one."""
        version = VERSIONS[api_key][1] if version is None else version
        answer = self.fields(api_key, version, **fields)
        body = encode_response(api_key, version, 1, answer)[8:]
        flexible = body[:1] if answer_is_flexible(api_key, version) else b""
        return read_response(api_key, version, body[len(flexible) :])

    def fields(self, api_key: int, version: int, /, **fields: Any) -> Mapping[str, Any]:
        """What the handler itself gives."""
        request = Request(api_key, version, 1, "test", "127.0.0.1", request_entity(api_key, version, fields))
        result = HANDLERS[api_key](cast(Any, self), request)
        answer: Mapping[str, Any] = asyncio.run(finished(result))
        while self.soon:
            asyncio.run(self.drop_old_offsets(self.soon.pop()))
        return answer

    def create(self, name: str, partition_count: int = 1, **overrides: str) -> None:
        texts = {key.replace("_", "."): value for key, value in overrides.items()}
        self.topics.create(name, partition_count, texts)

    def append(self, name: str, count: int = 1, *, timestamp_ms: int | None = None, **batch_fields: int) -> None:
        """Records that are in the log and readable. Their timestamps are 1000, 1001, … unless one is given for all."""
        log = self.topics.get(name).partitions[0]  # type: ignore[union-attr]
        if timestamp_ms is None:
            batch = consecutive(0, [b"x"] * count, **batch_fields)
        else:
            records = tuple(Record(number, timestamp_ms, b"k", b"x") for number in range(count))
            batch = Batch(0, records, count - 1, timestamp_ms, timestamp_ms, **batch_fields)
        log.append(memoryview(bytearray(encode(batch))), now_ms=10_000)
        log.write()
        log.publish(log.end_offset)

    def change_configs(self, name: str, overrides: Mapping[str, str], *, validate_only: bool = False) -> None:
        Broker.change_configs(cast(Any, self), name, overrides, validate_only=validate_only)

    def _use_configs(self, effective: Mapping[str, str]) -> None:
        Broker._use_configs(cast(Any, self), effective)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.topics.close()


def answer_is_flexible(api_key: int, version: int) -> bool:
    return bool(load_response_schema(api_key, version).__flexible__)


def codes(answers: Any) -> list[ErrorCode]:
    return [answer.error_code for answer in answers]
