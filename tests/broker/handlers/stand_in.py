"""A broker as the handlers see it: real topics in a folder, real settings, no sockets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from penstock.broker.handlers import admin, configs, metadata, offsets, partitions, refused
from penstock.broker.request import Handler, Request
from penstock.broker.settings import BrokerSettings
from penstock.broker.wire.schema import encode_response
from penstock.log.store import TopicStore
from tests.broker.handlers.entities import read_response, request_entity
from tests.log.batches import Batch, Record, consecutive, encode

MODULES = (admin, configs, metadata, offsets, partitions, refused)
HANDLERS: dict[int, Handler] = {key: handler for module in MODULES for key, handler in module.HANDLERS.items()}
VERSIONS: dict[int, tuple[int, int]] = {
    key: versions for module in MODULES for key, versions in module.VERSIONS.items()
}

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
        self.settings = BrokerSettings.parse(settings)
        self.topics = TopicStore(folder, broker_defaults=self.settings.overrides, internal_topics=INTERNAL)
        self.node = Node()
        self.cluster_id = CLUSTER_ID
        self.groups = Groups()

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
        if inspect.isawaitable(result):
            return asyncio.run(_awaited(result))
        return result

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

    def close(self) -> None:
        self.topics.close()


async def _awaited(result: Any) -> Any:
    return await result


def answer_is_flexible(api_key: int, version: int) -> bool:
    return bool(load_response_schema(api_key, version).__flexible__)


def codes(answers: Any) -> list[ErrorCode]:
    return [answer.error_code for answer in answers]
