"""Every API in every version, byte by byte: the answer has the form of that version and the codes that Kafka gives."""

from __future__ import annotations

import io
import struct
import uuid
from typing import Final

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.every_request import EXAMPLES, advertised, codes_in, set_stage
from tests.servers import Penstock, Server

NEVER_A_HANG_S = 5.0


@pytest.mark.parametrize("api", EXAMPLES)
def test_every_version_is_answered_in_its_own_form(server: Server, api: str) -> None:
    example = EXAMPLES[api]
    versions = set(advertised(server)[api]) & set(wire.versions_of(api))
    assert versions
    for version in sorted(versions):
        with wire.Connection(server) as connection:
            stage = set_stage(connection)
            example.before(connection, stage)
            fields = wire.only_known(api, version, example.fields(stage))
            answer = connection.call(api, version, **fields)
            assert codes_in(answer) == example.codes_of(version), f"version {version}: {answer}"


def test_what_we_say_we_have_is_a_part_of_what_kafka_has_and_is_tested_here(penstock: Penstock) -> None:
    ours = advertised(penstock)
    # Brokers send each other this one; no client does.
    assert set(ours) - {"write_txn_markers"} == set(EXAMPLES)
    for api, versions in ours.items():
        protocol = wire.versions_of(api)
        # Versions of Produce before 3 have left the protocol, but old librdkafka compresses only if it sees them.
        first = 0 if api == "produce" else protocol[0]
        assert first <= versions[0] <= versions[-1] <= protocol[-1], api


@pytest.mark.parametrize("api", sorted(wire.API_KEYS))
def test_an_api_that_we_lack_is_refused_or_closes_the_connection(penstock: Penstock, api: str) -> None:
    """Never an answer that looks like success: an empty list says nothing of the error."""
    ours = advertised(penstock).get(api, range(0))
    for version in sorted(set(wire.versions_of(api)) - set(ours)):
        with wire.Connection(penstock, timeout_s=NEVER_A_HANG_S) as connection:
            try:
                answer = connection.call(api, version)
            except wire.ConnectionClosed:
                continue
            assert codes_in(answer) == {ErrorCode.unsupported_version}, f"version {version}: {answer}"
            assert connection.call("api_versions", 0).error_code is ErrorCode.none
    assert wire.call(penstock, "api_versions", 0).error_code is ErrorCode.none


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_api_versions_request_that_is_too_new_is_answered_in_the_oldest_form(server: Server, version: int) -> None:
    with wire.Connection(server) as connection:
        connection.send_frame(struct.pack(">hhih", 18, version, 7, -1) + b"\0\x02x\x021\0")
        answer = wire.decode("api_versions", 0, connection.receive(), 7)
        assert answer.error_code is ErrorCode.unsupported_version
        assert {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}[18] == (0, 4)
        # The client tries again on the same connection.
        assert connection.call("api_versions", 0).error_code is ErrorCode.none


@pytest.mark.parametrize(("name", "code"), [("", 42), ("a b", 42), ("-x", 42), ("librdkafka.v-2", 0)])
def test_the_name_of_a_client_is_checked(server: Server, name: str, code: int) -> None:
    answer = wire.call(server, "api_versions", 3, client_software_name=name, client_software_version="1")
    assert answer.error_code == code


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (-5, 0), (3, 99), (3, -1), (1, 3)])
def test_what_the_protocol_does_not_have_closes_the_connection(server: Server, api_key: int, version: int) -> None:
    with wire.Connection(server, timeout_s=NEVER_A_HANG_S) as connection, wire.Connection(server) as other:
        connection.send_frame(struct.pack(">hhih", api_key, version, 1, -1))
        assert connection.is_closed_by_server()
        assert other.call("api_versions", 0).error_code is ErrorCode.none


@pytest.mark.parametrize("api", ["metadata", "create_topics", "join_group", "fetch", "produce"])
def test_a_request_that_ends_too_early_closes_the_connection(server: Server, api: str) -> None:
    with wire.Connection(server) as setting:
        stage = set_stage(setting)
    version = wire.versions_of(api)[-1]
    whole = wire.encode(api, version, 1, wire.only_known(api, version, EXAMPLES[api].fields(stage)))
    with wire.Connection(server, timeout_s=NEVER_A_HANG_S) as connection:
        connection.send_frame(whole[:-5])
        assert connection.is_closed_by_server()


def test_answers_come_in_the_order_of_the_requests(server: Server) -> None:
    with wire.Connection(server) as connection:
        stage = set_stage(connection)
        part = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20}
        topic = {"topic_id": stage.topic_id, "partitions": [part]}
        # The first must wait for records that do not come; the others could be answered at once.
        waiting = connection.send("fetch", 13, replica_id=-1, max_wait=300, min_bytes=1, topics=[topic])
        ids = [connection.send("metadata", 12, topics=[]) for _ in range(20)]
        answer = wire.decode("fetch", 13, connection.receive(), waiting)
        assert answer.responses[0].partitions[0].high_watermark == 1
        for correlation_id in ids:
            wire.decode("metadata", 12, connection.receive(), correlation_id)


def test_a_request_split_into_single_bytes_is_understood(server: Server) -> None:
    frame = wire.encode("metadata", 12, 5, {"topics": []})
    with wire.Connection(server) as connection:
        for byte in struct.pack(">i", len(frame)) + frame:
            connection.socket.sendall(bytes([byte]))
        assert wire.decode("metadata", 12, connection.receive(), 5).topics == ()


def test_tagged_fields_that_nobody_knows_are_passed_over(server: Server) -> None:
    known = wire.encode("metadata", 12, 5, {"topics": []})
    unknown = io.BytesIO()
    tag_section_bytes = 1
    unknown.write(known[:-tag_section_bytes])
    unknown.write(b"\x01\xf0\x07\x03abc")
    with wire.Connection(server) as connection:
        connection.send_frame(unknown.getvalue())
        assert wire.decode("metadata", 12, connection.receive(), 5).topics == ()


def test_a_topic_is_found_by_its_id_and_an_unknown_id_is_refused(server: Server) -> None:
    with wire.Connection(server) as connection:
        stage = set_stage(connection)
        (topic,) = connection.call("metadata", 12, topics=[{"topic_id": stage.topic_id, "name": None}]).topics
        assert (topic.name, topic.error_code) == (stage.topic, ErrorCode.none)
        unknown = uuid.uuid4()
        (topic,) = connection.call("metadata", 12, topics=[{"topic_id": unknown, "name": None}]).topics
        assert (topic.name, topic.topic_id, topic.error_code) == (None, unknown, ErrorCode.unknown_topic_id)


NULLS: Final = {
    "ListOffsets' topics": (2, 1, "ffffffff" + "ffffffff"),
    "Heartbeat's group": (12, 0, "ffff" + "00000000" + "0000"),
    "Produce's topics": (0, 9, "00" + "00" + "0001000003e8" + "00" + "00"),
    "the name of Produce's topic": (0, 9, "00" + "00" + "0001000003e8" + "0200" + "0100" + "00"),
    "Fetch's topics": (1, 12, "00" + "ffffffff" + 3 * "00000000" + "00" + "00000000ffffffff" + "00010100"),
}


@pytest.mark.parametrize("what", NULLS)
def test_null_where_the_protocol_has_none_closes_the_connection(server: Server, what: str) -> None:
    api_key, version, rest = NULLS[what]
    with wire.Connection(server) as connection:
        connection.send_frame(struct.pack(">hhih", api_key, version, 1, -1) + bytes.fromhex(rest))
        assert connection.is_closed_by_server()


def test_bytes_behind_a_request_are_passed_over(server: Server) -> None:
    fields = {"group_id": "g", "member_id": "nobody", "generation_id": 1}
    with wire.Connection(server) as connection:
        connection.send_frame(wire.encode("heartbeat", 4, 1, fields) + b"more")
        answer = wire.decode("heartbeat", 4, connection.receive(), 1)
    assert answer.error_code is ErrorCode.unknown_member_id
