"""A broker of which only the handlers about groups are real, and the bytes that go in and out of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.handlers import APIS
from penstock.broker.request import Request, finished
from penstock.broker.wire.schema import encode_response
from tests.broker.groups.doubles import SESSION_MS, World, assignment, subscription
from tests.broker.handlers.entities import read_response, request_entity, response_entity

TOPIC_IDS = {"t": uuid.UUID(int=0x1234), "u": uuid.UUID(int=0x5678)}

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE, LIST, TXN_OFFSET_COMMIT, DELETE, OFFSET_DELETE = 15, 16, 28, 42, 47

VERSIONS = {
    OFFSET_COMMIT: range(2, 11),
    OFFSET_FETCH: range(1, 11),
    FIND_COORDINATOR: range(7),
    JOIN: range(10),
    HEARTBEAT: range(5),
    LEAVE: range(6),
    SYNC: range(6),
    DESCRIBE: range(7),
    LIST: range(6),
    TXN_OFFSET_COMMIT: range(6),
    DELETE: range(3),
    OFFSET_DELETE: range(1),
}


@dataclass(frozen=True)
class Node:
    node_id: int = 1
    host: str = "127.0.0.1"
    port: int = 9092


class Topics:
    """Two topics with three partitions each."""

    def exists(self, topic: str, partition: int) -> bool:
        return topic in TOPIC_IDS and 0 <= partition < 3

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name, each in TOPIC_IDS.items() if each == topic_id), None)

    def id_of(self, name: str) -> uuid.UUID | None:
        return TOPIC_IDS.get(name)


@dataclass
class BrokerDouble:
    world: World = field(default_factory=World)
    node: Node = field(default_factory=Node)
    topics: Topics = field(default_factory=Topics)

    @property
    def groups(self) -> GroupCoordinator:
        return self.world.groups

    async def ask(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """A request through bytes, and its answer through bytes."""
        body = request_entity(api_key, version, fields)
        answer = APIS[api_key][0](cast("Any", self), Request(api_key, version, 1, "client", "10.1.2.3", body))
        answer = await finished(answer)
        response_entity(api_key, version, answer)  # strict about names that no version has
        encoded = encode_response(api_key, version, 1, answer)
        flexible = api_key != 18 and read_header_is_flexible(api_key, version)
        return read_response(api_key, version, encoded[9 if flexible else 8 :])

    def start(self, api_key: int, version: int, fields: Mapping[str, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self.ask(api_key, version, fields))

    async def member(self, version: int = 9, group: str = "g", **more: Any) -> Any:
        """The answer to the join of the only member of a stable group."""
        fields = join_fields(group, "", **more)
        if version >= 4:
            sent_away = await self.ask(JOIN, version, fields)
            assert sent_away.error_code is ErrorCode.member_id_required
            fields = join_fields(group, sent_away.member_id, **more)
        task = self.start(JOIN, version, fields)
        await self.world.clock.advance(0)
        joined = await task
        assert joined.error_code is ErrorCode.none
        synced = await self.ask(SYNC, 3, sync_fields(joined, {joined.member_id: assignment(("t", 0))}, group))
        assert synced.error_code is ErrorCode.none
        return joined


def read_header_is_flexible(api_key: int, version: int) -> bool:
    return bool(load_response_schema(api_key, version).__flexible__)


def join_fields(group: str, member_id: str, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": timedelta(milliseconds=SESSION_MS),
        "rebalance_timeout": timedelta(milliseconds=60_000),
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
        **more,
    }


def sync_fields(joined: Any, assignments: Mapping[str, bytes], group: str = "g") -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": who, "assignment": what} for who, what in assignments.items()],
    }


def topics_of(version: int, by_id_from: int, *rows: tuple[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The topics of a request about offsets, named as the version names them."""
    if version >= by_id_from:
        return [{"topic_id": TOPIC_IDS.get(name, uuid.UUID(int=99)), "partitions": rest} for name, rest in rows]
    return [{"name": name, "partitions": rest} for name, rest in rows]


def every_version(api_key: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", VERSIONS[api_key])
