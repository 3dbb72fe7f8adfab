"""What the log says about clients that err, and what they are answered when it is the broker that fails."""

from __future__ import annotations

import json
import logging
import struct
from pathlib import Path

import pytest

from penstock.broker.broker import BURST_LINES, ClientErrors
from penstock.broker.versions import SUPPORTED, refuse
from penstock.broker.wire.schema import API_VERSIONS
from tests.broker.groups.doubles import VirtualClock
from tests.broker.plain_requests import METADATA, PRODUCE, create_topic, produce_fields
from tests.clients import wire
from tests.clients.waiting import eventually
from tests.servers import Penstock

FORGED = "evil\n2026-11-16 12:00:00,000 ERROR   penstock.broker: the disk is on fire\x1b[2J\x9b1m\u202e\x7f"
"""A group id that would begin a line of its own, clear the screen and turn the text around."""


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_client_that_errs_in_a_loop_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    errors = ClientErrors(clock)
    for _ in range(10 * BURST_LINES):
        errors.warn("10.0.0.7", "closed the connection: a malformed request")
    assert warnings(caplog) == ["client 10.0.0.7: closed the connection: a malformed request"] * BURST_LINES
    clock.now_ms += 2000
    for _ in range(3):
        errors.warn("10.0.0.7", "again")
    assert warnings(caplog)[BURST_LINES:] == [
        f"client 10.0.0.7: again ({9 * BURST_LINES} more lines about clients were left out)",
        "client 10.0.0.7: again",
    ]


def test_a_failed_request_is_answered_with_an_error_or_not_at_all() -> None:
    """An answer without an error code, blank, would tell that all went well: the connection is closed instead."""
    for api_key, (low, high) in SUPPORTED.items():
        for version in range(low, high + 1):
            answer = refuse(api_key, version, 1)
            if answer is not None and api_key != API_VERSIONS:
                assert struct.pack(">h", 35) in answer, f"API {api_key} version {version}"
    assert refuse(8, 9, 1) is None, "OffsetCommit has codes for partitions only"
    assert refuse(11, 9, 1) is not None


def test_what_a_client_does_wrong_is_a_warning(tmp_path: Path) -> None:
    with Penstock(tmp_path) as penstock:
        with wire.Connection(penstock) as connection:
            connection.send_frame(struct.pack(">hhih", 4, 2, 1, -1))
            assert connection.is_closed_by_server()
        wire.call(penstock, "sasl_handshake", 1, mechanism="PLAIN")
        with wire.Connection(penstock) as connection:
            connection.send_frame(struct.pack(">hhih", 3, 12, 1, -1))
            assert connection.is_closed_by_server()
        topic = create_topic(penstock, max_message_bytes="100")
        wire.call(penstock, *PRODUCE, **produce_fields(topic, [bytes(200)]))
        said = penstock.process.output()
    for line in (
        f"client 127.0.0.1: refused records for {topic}-0: a batch of",
        "client 127.0.0.1: closed the connection: it sent API 4 version 2, which this broker does not have",
        "client 127.0.0.1: refused API 17 version 1, which this broker does not have",
        "client 127.0.0.1: closed the connection: a malformed request (API 3 version 12)",
    ):
        assert f" WARNING penstock.broker.broker: {line}" in said


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_client_cannot_forge_lines_of_the_log(tmp_path: Path, log_format: str) -> None:
    with Penstock(tmp_path, "--log-format", log_format) as penstock:
        with wire.Connection(penstock) as connection:
            protocols = [{"name": "range", "metadata": b""}]
            fields = {"group_id": FORGED, "session_timeout": 6000, "protocol_type": "consumer", "protocols": protocols}
            answer = connection.call("join_group", 0, member_id="", **fields)
            connection.call("leave_group", 0, group_id=FORGED, member_id=answer.member_id)
        assert wire.call(penstock, *METADATA, topics=[]).brokers
        output = eventually("it is logged", lambda: "evil" in penstock.process.output() and penstock.process.output())
    lines = str(output).split("\n")[:-1]
    assert all(line.isprintable() for line in lines)
    if log_format == "json":
        entries = [json.loads(line) for line in lines if not line.startswith("penstock: ")]
        assert any(FORGED in entry["message"] for entry in entries), "and programs get it as it was"
    else:
        (line,) = [line for line in lines if "on fire" in line and "leaves group" in line]
        assert " INFO    penstock.broker.groups" in line
        assert r"evil\n2026-11-16" in line
        assert r"\x1b[2J\x9b1m\u202e\x7f" in line
