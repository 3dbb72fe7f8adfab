"""What a log of one node lacks or has nothing to do for is answered with the reason, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.handlers.stand_in import NODE_ID, VERSIONS, StandIn, codes


def versions(api_key: int) -> range:
    low, high = VERSIONS[api_key]
    return range(low, high + 1)


@pytest.mark.parametrize("version", versions(43))
def test_the_leader_leads_already(broker: StandIn, version: int) -> None:
    broker.create("a")
    asked = [{"topic": "a", "partitions": [0, 9]}, {"topic": "nope", "partitions": [0]}]
    answer = broker.ask(43, version, topic_partitions=asked)
    results = [result for topic in answer.replica_election_results for result in topic.partition_result]
    assert codes(results) == [
        ErrorCode.election_not_needed,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert all(result.error_message for result in results)
    assert broker.ask(43, version, topic_partitions=None).replica_election_results == ()


def test_an_election_of_unknown_type_is_refused(broker: StandIn) -> None:
    broker.create("a")
    answer = broker.ask(43, election_type=5, topic_partitions=[{"topic": "a", "partitions": [0]}])
    assert answer.error_code is ErrorCode.invalid_request
    assert codes(answer.replica_election_results[0].partition_result) == [ErrorCode.invalid_request]


@pytest.mark.parametrize("version", versions(45))
@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, [NODE_ID], "none"),
        (0, None, "no_reassignment_in_progress"),
        (0, [], "invalid_replica_assignment"),
        (0, [NODE_ID + 1], "invalid_replica_assignment"),
        (0, [NODE_ID, NODE_ID], "invalid_replica_assignment"),
        (9, [NODE_ID], "unknown_topic_or_partition"),
    ],
)
def test_partitions_stay_where_they_are(
    broker: StandIn, version: int, partition: int, replicas: list[int] | None, code: str
) -> None:
    broker.create("a")
    wanted = [{"name": "a", "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    answer = broker.ask(45, version, topics=wanted)
    assert answer.error_code is ErrorCode.none
    (result,) = answer.responses[0].partitions
    assert result.error_code is ErrorCode[code]
    assert bool(result.error_message) == (code != "none")


def test_no_partition_is_on_its_way(broker: StandIn) -> None:
    answer = broker.ask(46, topics=None)
    assert (answer.error_code, answer.topics) == (ErrorCode.none, ())


ACL = {
    "resource_type": 2,
    "resource_name": "a",
    "principal": "User:a",
    "host": "*",
    "operation": 2,
    "permission_type": 3,
}
ACL_FILTER = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}


@pytest.mark.parametrize("version", versions(29))
def test_there_is_no_access_control(broker: StandIn, version: int) -> None:
    answers: list[Any] = [broker.ask(29, version, **ACL_FILTER)]
    answers += broker.ask(30, version, creations=[ACL, ACL]).results
    answers += broker.ask(31, version, filters=[ACL_FILTER, ACL_FILTER]).filter_results
    assert codes(answers) == [ErrorCode.security_disabled] * 5
    assert all("access control" in answer.error_message for answer in answers)


@pytest.mark.parametrize("version", versions(48))
def test_there_are_no_quotas(broker: StandIn, version: int) -> None:
    component = {"entity_type": "user", "match_type": 2, "match": None}
    answer = broker.ask(48, version, components=[component], strict=False)
    assert (answer.error_code, answer.entries) == (ErrorCode.none, ())
    answer = broker.ask(48, version, components=[{**component, "entity_type": "planet"}], strict=False)
    assert (answer.error_code, answer.entries) == (ErrorCode.unsupported_version, None)
    entity = [{"entity_type": "user", "entity_name": None}, {"entity_type": "client-id", "entity_name": "c"}]
    entry = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}
    (result,) = broker.ask(49, version, entries=[entry]).entries
    assert result.error_code is ErrorCode.invalid_request
    assert "no quotas" in result.error_message
    assert [(each.entity_type, each.entity_name) for each in result.entity] == [("user", None), ("client-id", "c")]


def test_there_are_no_scram_users(broker: StandIn) -> None:
    assert broker.ask(50, users=None).results == ()
    results = broker.ask(50, users=[{"name": name} for name in ("a", "b", "b")]).results
    assert {result.user: result.error_code for result in results} == {
        "a": ErrorCode.resource_not_found,
        "b": ErrorCode.duplicate_resource,
    }
    upsertion = {"name": "a", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p"}
    deletion = {"name": "b", "mechanism": 1}
    results = broker.ask(51, upsertions=[upsertion], deletions=[deletion]).results
    assert {result.user: result.error_code for result in results} == {
        "a": ErrorCode.unsupported_sasl_mechanism,
        "b": ErrorCode.resource_not_found,
    }
    assert all(result.error_message for result in results)


@pytest.mark.parametrize("version", versions(57))
def test_there_are_no_features_to_update(broker: StandIn, version: int) -> None:
    """Apache Kafka, too, refuses all updates if one names a feature that it does not know."""
    update = {"feature": "metadata.version", "max_version_level": 30}
    answer = broker.ask(57, version, feature_updates=[update])
    assert answer.error_code is ErrorCode.invalid_update_version
    assert answer.error_message.startswith("metadata.version: this broker has no features")
    assert broker.ask(57, version, feature_updates=[]).error_code is ErrorCode.none
