"""Requests that do not apply to a log with one node. Each is answered with the reason.

Leaders and reassignments: there is one replica, which leads. Access control, quotas, SCRAM users and cluster features:
there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, reported
from penstock.broker.handlers.topic_checks import check_replicas
from penstock.broker.request import Apis, Fields, Request, Steps

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

NO_ACCESS_CONTROL: Final = (
    "penstock's log has no access control: whoever reaches its address may do everything. Listen on a loopback or "
    "private address, or use Apache Kafka for access control lists."
)
NO_QUOTAS: Final = "penstock's log has no quotas; use Apache Kafka if you need them."
NO_SCRAM: Final = "penstock's log keeps no SCRAM users; use Apache Kafka for them."
ELECTION_TYPES: Final = (0, 1)
QUOTA_ENTITIES: Final = frozenset({"user", "client-id", "ip"})


def elect_leaders(broker: Broker, request: Request) -> Steps[Fields]:
    election_type = request.get("election_type", 0)
    code = ErrorCode.none if election_type in ELECTION_TYPES else ErrorCode.invalid_request
    results: list[Fields] = []
    for asked in request.body.topic_partitions or ():
        elected: list[Fields] = []
        results.append({"topic": asked.topic, "partition_result": elected})
        for number in asked.partitions:
            with reported() as outcome:
                if code:
                    raise ProtocolError(code, f"election type {election_type} is unknown; use 0 or 1")
                _check_exists(broker, asked.topic, number)
                raise ProtocolError(ErrorCode.election_not_needed, "the only replica is the leader already")
            elected.append({"partition_id": number, **outcome})
            yield
    return {"error_code": code, "replica_election_results": results}


def alter_partition_reassignments(broker: Broker, request: Request) -> Steps[Fields]:
    responses: list[Fields] = []
    for topic in request.body.topics:
        partitions: list[Fields] = []
        responses.append({"name": topic.name, "partitions": partitions})
        for wanted in topic.partitions:
            partitions.append(_reassigned(broker, topic.name, wanted.partition_index, wanted.replicas))
            yield
    return {
        "allow_replication_factor_change": request.get("allow_replication_factor_change", True),
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": responses,
    }


def _reassigned(broker: Broker, topic: str, partition: int, replicas: Sequence[int] | None) -> Fields:
    """Success for the current assignment; null replicas cancel a reassignment, and there never is one."""
    with reported() as outcome:
        _check_exists(broker, topic, partition)
        if replicas is None:
            raise ProtocolError(ErrorCode.no_reassignment_in_progress, f"{topic}-{partition} is not being reassigned")
        check_replicas(replicas, broker.node.node_id)
    return {"partition_index": partition, **outcome}


def list_partition_reassignments(broker: Broker, request: Request) -> Fields:
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}


def _check_exists(broker: Broker, topic: str, partition: int) -> None:
    if not broker.topics.exists(topic, partition):
        raise ProtocolError(
            ErrorCode.unknown_topic_or_partition, f"there is no partition {partition} of topic {topic!r}"
        )


def describe_acls(broker: Broker, request: Request) -> Fields:
    return {"error_code": ErrorCode.security_disabled, "error_message": NO_ACCESS_CONTROL, "resources": []}


def create_acls(broker: Broker, request: Request) -> Fields:
    refusal = {"error_code": ErrorCode.security_disabled, "error_message": NO_ACCESS_CONTROL}
    return {"results": [refusal] * len(request.body.creations)}


def delete_acls(broker: Broker, request: Request) -> Fields:
    refusal = {"error_code": ErrorCode.security_disabled, "error_message": NO_ACCESS_CONTROL, "matching_acls": []}
    return {"filter_results": [refusal] * len(request.body.filters)}


def describe_client_quotas(broker: Broker, request: Request) -> Fields:
    unknown = {component.entity_type for component in request.body.components} - QUOTA_ENTITIES
    if unknown:
        message = f"unknown kinds of quota entity: {', '.join(sorted(unknown))}; use user, client-id or ip"
        return {"error_code": ErrorCode.unsupported_version, "error_message": message, "entries": None}
    return {"error_code": ErrorCode.none, "error_message": None, "entries": []}


def alter_client_quotas(broker: Broker, request: Request) -> Fields:
    return {
        "entries": [
            {
                "error_code": ErrorCode.invalid_request,
                "error_message": NO_QUOTAS,
                "entity": [
                    {"entity_type": entity.entity_type, "entity_name": entity.entity_name} for entity in entry.entity
                ],
            }
            for entry in request.body.entries
        ]
    }


def describe_user_scram_credentials(broker: Broker, request: Request) -> Fields:
    named = Counter(user.name for user in request.body.users or ())
    results = []
    for name, times in named.items():
        if times > 1:
            code, message = ErrorCode.duplicate_resource, f"user {name!r} is asked for twice; ask once"
        else:
            code, message = ErrorCode.resource_not_found, f"there is no user {name!r}. {NO_SCRAM}"
        results.append({"user": name, "error_code": code, "error_message": message, "credential_infos": []})
    return {"error_code": ErrorCode.none, "error_message": None, "results": results}


def alter_user_scram_credentials(broker: Broker, request: Request) -> Fields:
    results = {
        deletion.name: {
            "user": deletion.name,
            "error_code": ErrorCode.resource_not_found,
            "error_message": f"there is no user {deletion.name!r}. {NO_SCRAM}",
        }
        for deletion in request.body.deletions
    }
    for upsertion in request.body.upsertions:
        results[upsertion.name] = {
            "user": upsertion.name,
            "error_code": ErrorCode.unsupported_sasl_mechanism,
            "error_message": NO_SCRAM,
        }
    return {"results": list(results.values())}


def update_features(broker: Broker, request: Request) -> Fields:
    """ApiVersions lists no features, so every update names an unknown one; Kafka refuses them together."""
    updates = request.body.feature_updates
    if not updates:
        return {"error_code": ErrorCode.none, "error_message": None, "results": []}
    unknown = ", ".join(sorted({update.feature for update in updates}))
    message = (
        f"{unknown}: this broker has no features that can be changed. Its version determines what it can do; "
        "upgrade penstock for more."
    )
    return {"error_code": ErrorCode.invalid_update_version, "error_message": message, "results": []}


APIS: Final[Apis] = {
    29: (describe_acls, 1, 3),
    30: (create_acls, 1, 3),
    31: (delete_acls, 1, 3),
    43: (elect_leaders, 0, 2),
    45: (alter_partition_reassignments, 0, 1),
    46: (list_partition_reassignments, 0, 0),
    48: (describe_client_quotas, 0, 1),
    49: (alter_client_quotas, 0, 1),
    50: (describe_user_scram_credentials, 0, 0),
    51: (alter_user_scram_credentials, 0, 0),
    57: (update_features, 0, 2),
}
