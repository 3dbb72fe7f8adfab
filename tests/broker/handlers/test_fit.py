"""What handlers give fits the protocol's schemas: every field they name exists, in every version they support.

Kio's own classes and writer are the judge, and the broker's encoder must write the same bytes.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.handlers import metadata
from penstock.broker.wire.schema import encode_response
from tests.broker.handlers.entities import response_bytes, versions_of
from tests.broker.handlers.stand_in import HANDLERS, NODE_ID, VERSIONS, StandIn, answer_is_flexible
from tests.log.batches import TRANSACTIONAL

NAMES = ("a", "nope", "no good", "__consumer_offsets")
STRANGER = uuid.UUID(int=99)
KNOWN_AND_UNKNOWN = [{"name": name} for name in NAMES]
RESOURCES = [(2, "a"), (2, "nope"), (4, str(NODE_ID)), (4, "99"), (8, "x"), (99, "x")]
CREATION = {"num_partitions": 1, "replication_factor": 1}
ACL = {
    "resource_type": 2,
    "resource_name": "a",
    "principal": "User:a",
    "host": "*",
    "operation": 2,
    "permission_type": 3,
}
PARTITIONS = [{"partition_index": number, "replicas": replicas} for number, replicas in ((0, None), (1, [3]), (9, []))]

REQUESTS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"replica_id": -1, "topics": [{"name": name, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]}
        for name in NAMES
        for timestamp in (-1, -2, -3, -7, 1000)
    ],
    3: [
        {"topics": KNOWN_AND_UNKNOWN, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True},
        {"topics": [{"name": "made"}], "include_cluster_authorized_operations": True},
        {"topics": []},
    ],
    19: [
        {"topics": [{"name": "made", **CREATION, "configs": [{"name": "retention.ms", "value": "1"}]}]},
        {"topics": [{"name": name, **CREATION} for name in NAMES], "validate_only": True},
    ],
    20: [{"topic_names": NAMES, "topics": [*KNOWN_AND_UNKNOWN, {"name": None, "topic_id": STRANGER}]}],
    21: [{"topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]} for name in NAMES]}],
    23: [
        {"topics": [{"topic": name, "partitions": [{"partition": 0, "leader_epoch": epoch}]} for name in NAMES]}
        for epoch in (0, 1)
    ],
    29: [{"resource_type_filter": 1, "operation": 1, "permission_type": 1}],
    30: [{"creations": [ACL]}],
    31: [{"filters": [{"resource_type_filter": 1, "operation": 1, "permission_type": 1}]}],
    32: [
        {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in RESOURCES
            ],
            "include_synonyms": asked,
            "include_documentation": asked,
        }
        for asked in (True, False)
    ],
    33: [
        {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configs": [{"name": "retention.ms", "value": "1"}]}
                for kind, name in RESOURCES
            ]
        }
    ],
    35: [{"topics": None}, {"topics": [{"topic": "a", "partitions": [0]}]}],
    37: [{"topics": [{"name": name, "count": 3, "assignments": None} for name in NAMES]}],
    43: [
        {"election_type": kind, "topic_partitions": [{"topic": name, "partitions": [0]} for name in NAMES]}
        for kind in (0, 5)
    ],
    44: [
        {
            "resources": [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1"}],
                }
                for kind, name in RESOURCES
            ]
        }
    ],
    45: [{"topics": [{"name": name, "partitions": PARTITIONS} for name in NAMES]}],
    46: [{"topics": None}],
    48: [
        {"components": [{"entity_type": kind, "match_type": 2, "match": None}], "strict": False}
        for kind in ("user", "planet")
    ],
    49: [
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": None}],
                    "ops": [{"key": "x", "value": 1.0, "remove": False}],
                }
            ]
        }
    ],
    50: [{"users": None}, {"users": [{"name": "u"}, {"name": "v"}, {"name": "v"}]}],
    51: [
        {
            "upsertions": [{"name": "u", "mechanism": 1, "iterations": 1, "salt": b"s", "salted_password": b"p"}],
            "deletions": [{"name": "v", "mechanism": 1}],
        }
    ],
    57: [{"feature_updates": []}, {"feature_updates": [{"feature": "x", "max_version_level": 1}]}],
    60: [{"include_cluster_authorized_operations": True, "endpoint_type": kind} for kind in (1, 2, 9)],
    61: [{"topics": [{"name": name, "partition_indexes": [0, 9]} for name in NAMES]}],
    74: [{"resource_types": []}, {"resource_types": [99]}],
    75: [{"topics": KNOWN_AND_UNKNOWN, "response_partition_limit": limit} for limit in (1, 2000)],
}

CASES = [
    pytest.param(api_key, version, number, id=f"api{api_key}-v{version}-request{number}")
    for api_key, requests in REQUESTS.items()
    for version in range(VERSIONS[api_key][0], VERSIONS[api_key][1] + 1)
    for number in range(len(requests))
]


@pytest.fixture
def filled(broker: StandIn) -> StandIn:
    broker.create("a", 2)
    broker.create("__consumer_offsets", cleanup_policy="compact")
    broker.append("a", 2, producer_id=1)
    broker.append("a", 2, producer_id=2, flags=TRANSACTIONAL)
    return broker


def test_every_api_is_tried_in_every_version_that_it_is_offered_in() -> None:
    assert set(REQUESTS) == set(HANDLERS) == set(VERSIONS)
    for api_key, (low, high) in VERSIONS.items():
        assert set(range(low, high + 1)) <= set(versions_of(api_key))


@pytest.mark.parametrize(("api_key", "version", "number"), CASES)
def test_the_answer_fits_the_schema(
    filled: StandIn, monkeypatch: pytest.MonkeyPatch, api_key: int, version: int, number: int
) -> None:
    request = REQUESTS[api_key][number]
    with monkeypatch.context() as plainly:
        # What Metadata says about a topic comes encoded; here it is wanted as the fields that it is made from.
        plainly.setattr(metadata.EncodedTopics, "get", metadata.EncodedTopics.fields)
        fields = filled.fields(api_key, version, **request)
    by_kio = response_bytes(api_key, version, fields)
    header = b"\0" if answer_is_flexible(api_key, version) else b""
    assert encode_response(api_key, version, 5, fields)[8:] == header + by_kio
    if api_key == metadata.METADATA:
        again = filled.fields(api_key, version, **request)
        assert [isinstance(topic, bytes) for topic in again["topics"]] == [
            topic["error_code"] is ErrorCode.none for topic in fields["topics"]
        ]
        assert encode_response(api_key, version, 5, again)[8:] == header + by_kio
