"""One small, valid request of every API that a client uses, and the error codes that its answer holds.

Fields are given for all versions at once, by kio's names; `wire.only_known` keeps those that a version has.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from tests.clients import wire
from tests.clients.batches import batch
from tests.clients.names import fresh
from tests.servers import Server


@dataclass(frozen=True, slots=True)
class Stage:
    """What a request may refer to: a topic with one record, an id for transactions, names that nobody knows yet."""

    topic: str
    topic_id: uuid.UUID
    group: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    broker: int


def set_stage(connection: wire.Connection) -> Stage:
    topic, transactional_id = fresh(), fresh("txn")
    new = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    (created,) = connection.call("create_topics", 7, topics=[new], timeout=10_000).topics
    assert created.error_code is ErrorCode.none
    wire.wait_for_leader(connection, topic)
    (broker,) = connection.call("metadata", 12, topics=[]).brokers
    part = {"index": 0, "records": batch([b"first"])}
    data = [{"name": topic, "partition_data": [part]}]
    assert codes_in(connection.call("produce", 9, acks=-1, timeout=10_000, topic_data=data)) == NONE
    init = connection.call("init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=60_000)
    assert init.error_code is ErrorCode.none
    return Stage(
        topic, created.topic_id, fresh("group"), transactional_id, init.producer_id, init.producer_epoch, broker.node_id
    )


Fields = Mapping[str, Any]
NONE: Final = frozenset({ErrorCode.none})


def _produce(stage: Stage) -> Fields:
    part = {"index": 0, "records": batch([b"x", b"y"])}
    topic = {"name": stage.topic, "topic_id": stage.topic_id, "partition_data": [part]}
    return {"acks": 1, "timeout": 5000, "transactional_id": None, "topic_data": [topic]}


def _fetch(stage: Stage) -> Fields:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topic = {"topic": stage.topic, "topic_id": stage.topic_id, "partitions": [part]}
    return {"replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [topic]}


def _list_offsets(stage: Stage) -> Fields:
    part = {"partition_index": 0, "timestamp": -1}
    return {"replica_id": -1, "topics": [{"name": stage.topic, "partitions": [part]}]}


def _offset_commit(stage: Stage) -> Fields:
    part = {"partition_index": 0, "committed_offset": 1}
    topic = {"name": stage.topic, "topic_id": stage.topic_id, "partitions": [part]}
    return {"group_id": stage.group, "generation_id_or_member_epoch": -1, "topics": [topic]}


def _offset_fetch(stage: Stage) -> Fields:
    topics = [{"name": stage.topic, "topic_id": stage.topic_id, "partition_indexes": [0]}]
    groups = [{"group_id": stage.group, "member_epoch": -1, "topics": topics}]
    return {"group_id": stage.group, "topics": topics, "groups": groups}


def _join_group(stage: Stage) -> Fields:
    protocols = [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}]
    times = {"session_timeout": 6000, "rebalance_timeout": 6000}
    return {"group_id": stage.group, **times, "protocol_type": "consumer", "protocols": protocols}


_PROTOCOL: Final = {"protocol_type": "consumer", "protocol_name": "range"}


def _sync_group(stage: Stage) -> Fields:
    return {"group_id": stage.group, "generation_id": 1, "member_id": "x", **_PROTOCOL}


def _leave_group(stage: Stage) -> Fields:
    return {"group_id": stage.group, "member_id": "nobody", "members": [{"member_id": "nobody"}]}


def _create_topics(stage: Stage) -> Fields:
    configs = [{"name": "retention.ms", "value": "1000"}]
    topic = {"name": fresh(), "num_partitions": 2, "replication_factor": 1, "configs": configs}
    return {"topics": [topic], "timeout": 5000}


def _delete_topics(stage: Stage) -> Fields:
    return {"topic_names": [stage.topic], "topics": [{"name": stage.topic}], "timeout": 5000}


def _delete_records(stage: Stage) -> Fields:
    part = {"partition_index": 0, "offset": 1}
    return {"topics": [{"name": stage.topic, "partitions": [part]}], "timeout": 5000}


def _init_producer_id(stage: Stage) -> Fields:
    return {"transactional_id": fresh("txn"), "transaction_timeout": 5000, "producer_id": -1, "producer_epoch": -1}


def _offset_for_leader_epoch(stage: Stage) -> Fields:
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    return {"replica_id": -1, "topics": [{"topic": stage.topic, "partitions": [part]}]}


def _who(stage: Stage, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}transactional_id": stage.transactional_id,
        f"{prefix}producer_id": stage.producer_id,
        f"{prefix}producer_epoch": stage.producer_epoch,
    }


def _add_partitions_to_txn(stage: Stage) -> Fields:
    topics = [{"name": stage.topic, "partitions": [0]}]
    old = {**_who(stage, "v3_and_below_"), "v3_and_below_topics": topics}
    return {**old, "transactions": [{**_who(stage), "verify_only": False, "topics": topics}]}


def _begin_with_partition(connection: wire.Connection, stage: Stage) -> None:
    fields = wire.only_known("add_partitions_to_txn", 3, _add_partitions_to_txn(stage))
    assert codes_in(connection.call("add_partitions_to_txn", 3, **fields)) == NONE


def _begin_with_group(connection: wire.Connection, stage: Stage) -> None:
    answer = connection.call("add_offsets_to_txn", 3, **_who(stage), group_id=stage.group)
    assert answer.error_code is ErrorCode.none


def _txn_offset_commit(stage: Stage) -> Fields:
    part = {"partition_index": 0, "committed_offset": 1}
    topics = [{"name": stage.topic, "partitions": [part]}]
    return {**_who(stage), "group_id": stage.group, "generation_id": -1, "topics": topics}


def _resource(stage: Stage, **more: Any) -> dict[str, Any]:
    topic_resource = 2
    return {"resource_type": topic_resource, "resource_name": stage.topic, **more}


def _describe_configs(stage: Stage) -> Fields:
    asked = _resource(stage, configuration_keys=None)
    return {"resources": [asked], "include_synonyms": True, "include_documentation": True}


def _alter_configs(stage: Stage) -> Fields:
    return {"resources": [_resource(stage, configs=[{"name": "retention.ms", "value": "1"}])]}


def _incremental_alter_configs(stage: Stage) -> Fields:
    change = {"name": "retention.ms", "value": "1", "config_operation": 0}
    return {"resources": [_resource(stage, configs=[change])]}


def _create_partitions(stage: Stage) -> Fields:
    return {"topics": [{"name": stage.topic, "count": 3, "assignments": None}], "timeout": 5000}


def _describe_acls(stage: Stage) -> Fields:
    return {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def _elect_leaders(stage: Stage) -> Fields:
    return {"topic_partitions": [{"topic": stage.topic, "partitions": [0]}], "timeout": 5000}


@dataclass(frozen=True, slots=True)
class Example:
    fields: Callable[[Stage], Fields]
    codes: frozenset[ErrorCode] = NONE
    """The error codes somewhere in the answer, as a set."""
    codes_since: Mapping[int, frozenset[ErrorCode]] = dataclasses.field(default_factory=dict)
    """Other codes from a version on."""
    before: Callable[[wire.Connection, Stage], None] = lambda connection, stage: None
    """What must have happened for the request to be valid."""

    def codes_of(self, version: int) -> frozenset[ErrorCode]:
        since = max((first for first in self.codes_since if first <= version), default=None)
        return self.codes if since is None else self.codes_since[since]


EXAMPLES: Final[Mapping[str, Example]] = {
    "produce": Example(_produce),
    "fetch": Example(_fetch),
    "list_offsets": Example(_list_offsets),
    "metadata": Example(lambda stage: {"topics": [{"name": stage.topic}]}),
    "offset_commit": Example(_offset_commit),
    "offset_fetch": Example(_offset_fetch),
    "find_coordinator": Example(lambda stage: {"key": stage.group, "coordinator_keys": [stage.group]}),
    "join_group": Example(_join_group, codes_since={4: frozenset({ErrorCode.member_id_required})}),
    "heartbeat": Example(
        lambda stage: {"group_id": stage.group, "member_id": "nobody", "generation_id": 1},
        frozenset({ErrorCode.unknown_member_id}),
    ),
    "leave_group": Example(
        _leave_group,
        frozenset({ErrorCode.unknown_member_id}),
        codes_since={3: frozenset({ErrorCode.none, ErrorCode.unknown_member_id})},
    ),
    "sync_group": Example(_sync_group, frozenset({ErrorCode.unknown_member_id})),
    "describe_groups": Example(
        lambda stage: {"groups": [stage.group]}, codes_since={6: frozenset({ErrorCode.group_id_not_found})}
    ),
    "list_groups": Example(lambda stage: {}),
    "api_versions": Example(lambda stage: {"client_software_name": "test", "client_software_version": "1.0"}),
    "create_topics": Example(_create_topics),
    "delete_topics": Example(_delete_topics),
    "delete_records": Example(_delete_records),
    "init_producer_id": Example(_init_producer_id),
    "offset_for_leader_epoch": Example(_offset_for_leader_epoch),
    "add_partitions_to_txn": Example(_add_partitions_to_txn),
    "add_offsets_to_txn": Example(lambda stage: {**_who(stage), "group_id": stage.group}),
    "end_txn": Example(lambda stage: {**_who(stage), "committed": True}, before=_begin_with_partition),
    "txn_offset_commit": Example(_txn_offset_commit, before=_begin_with_group),
    "describe_acls": Example(_describe_acls, frozenset({ErrorCode.security_disabled})),
    "create_acls": Example(lambda stage: {"creations": []}, frozenset()),
    "delete_acls": Example(lambda stage: {"filters": []}, frozenset()),
    "describe_configs": Example(_describe_configs),
    "alter_configs": Example(_alter_configs),
    "describe_log_dirs": Example(lambda stage: {"topics": [{"topic": stage.topic, "partitions": [0]}]}),
    "create_partitions": Example(_create_partitions),
    "delete_groups": Example(lambda stage: {"groups_names": [stage.group]}, frozenset({ErrorCode.group_id_not_found})),
    "elect_leaders": Example(
        _elect_leaders,
        frozenset({ErrorCode.election_not_needed}),
        codes_since={1: frozenset({ErrorCode.none, ErrorCode.election_not_needed})},
    ),
    "incremental_alter_configs": Example(_incremental_alter_configs),
    "alter_partition_reassignments": Example(lambda stage: {"topics": [], "timeout": 5000}),
    "list_partition_reassignments": Example(lambda stage: {"topics": None, "timeout": 5000}),
    "offset_delete": Example(
        lambda stage: {"group_id": stage.group, "topics": []}, frozenset({ErrorCode.group_id_not_found})
    ),
    "describe_client_quotas": Example(lambda stage: {}),
    "alter_client_quotas": Example(lambda stage: {}, frozenset()),
    "describe_user_scram_credentials": Example(lambda stage: {"users": None}),
    "alter_user_scram_credentials": Example(lambda stage: {}, frozenset()),
    "update_features": Example(lambda stage: {}),
    "describe_cluster": Example(lambda stage: {}),
    "describe_producers": Example(lambda stage: {"topics": [{"name": stage.topic, "partition_indexes": [0]}]}),
    "describe_transactions": Example(
        lambda stage: {"transactional_ids": [stage.transactional_id]}, before=_begin_with_partition
    ),
    "list_transactions": Example(lambda stage: {}),
    "list_config_resources": Example(lambda stage: {}),
    "describe_topic_partitions": Example(
        lambda stage: {"topics": [{"name": stage.topic}], "response_partition_limit": 10}
    ),
}


def codes_in(answer: Any) -> frozenset[ErrorCode]:
    """Every error code in an answer, wherever it stands."""
    if isinstance(answer, tuple):
        return frozenset().union(*(codes_in(item) for item in answer))
    if not dataclasses.is_dataclass(answer):
        return frozenset()
    found: frozenset[ErrorCode] = frozenset()
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        found |= {value} if isinstance(value, ErrorCode) else codes_in(value)
    return found


def advertised(server: Server) -> dict[str, range]:
    """The APIs that a server says it has, by name, with their versions. One that the protocol does not name fails."""
    answer = wire.call(server, "api_versions", 0)
    return {api_key_map[row.api_key]: range(row.min_version, row.max_version + 1) for row in answer.api_keys}
