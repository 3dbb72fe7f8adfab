"""`penstock serve` as a process: how it says what it does, how it stops, and what it says when it cannot start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client.parser import text_string_to_metric_families

from tests.broker.plain_requests import (
    FETCH,
    METADATA,
    PRODUCE,
    create_topic,
    fetch_fields,
    produce,
    produce_fields,
    produced,
    whole_values,
)
from tests.clients import wire
from tests.clients.waiting import eventually
from tests.servers import Penstock

START_TIMEOUT_S = 20.0


def serve_and_fail(*arguments: str) -> str:
    """Run `penstock serve`, which must not start; answers what it says about that."""
    command = [sys.executable, "-m", "penstock.cli", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_second_broker_on_a_folder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with Penstock(tmp_path) as penstock:
        said = serve_and_fail("--data", str(penstock.data), "--listen", "127.0.0.1:0")
        assert f"{penstock.data} is in use by process {penstock.pid}" in said
        assert wire.call(penstock, *METADATA, topics=[]).brokers
        penstock.terminate()
        penstock.start()
        penstock.kill()
        penstock.start()
        assert wire.call(penstock, *METADATA, topics=[]).brokers


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = serve_and_fail("--data", str(tmp_path / "data"), "--listen", address)
        assert f"cannot listen on {address}: Address already in use" in said
        said = serve_and_fail("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--metrics", address)
        assert f"cannot serve metrics on {address}: Address already in use" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "9092"), "--listen '9092' is not HOST:PORT"),
        (("--listen", "127.0.0.1:70000"), "--listen '127.0.0.1:70000' is not HOST:PORT"),
        (("--listen", "0.0.0.0:0", "--insecure"), "add --advertise HOST:PORT"),
        (("--listen", "0.0.0.0:0", "--advertise", ":0", "--insecure"), "not an address that clients can connect to"),
        (("--listen", "0.0.0.0:0", "--advertise", "box:9092"), "--listen 0.0.0.0:0 lets every machine that can reach"),
        (
            ("--listen", ":0", "--advertise", "box:9092"),
            "read, change and delete everything in the log",
        ),
        (("--listen", "[::]:0", "--advertise", "box:9092"), "Listen on 127.0.0.1, or add --insecure"),
        (("--listen", "192.0.2.1:9092"), "--listen 192.0.2.1:9092 lets every machine"),
        (("--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"), "--metrics 0.0.0.0:0 lets every machine"),
        (
            ("--listen", "192.0.2.1:9092", "--insecure"),
            "cannot listen on 192.0.2.1:9092: Cannot assign",
        ),
        (
            ("--listen", "127.0.0.1:0", "--metrics", "192.0.2.1:1", "--insecure"),
            "cannot serve metrics on 192.0.2.1:1",
        ),
        (("--listen", "no such host:9092"), "'no such host' is not a host name or address"),
        (("--config", "node.id=-1"), "node.id='-1' is not allowed: use a whole number of at least 0"),
        (("--config", "advertised.listeners=box:9092"), "advertised.listeners='box:9092' is not allowed"),
        (
            ("--advertise", "box:1", "--config", "advertised.listeners=PLAINTEXT://box:1"),
            "--advertise and --config advertised.listeners are the same setting",
        ),
        (("--config", "num.partitions"), "--config 'num.partitions' is not NAME=VALUE"),
        (("--config", "num.partition=3"), "num.partition"),
        (("--config", "num.partitions=0"), "num.partitions='0' is not allowed: use a whole number of at least 1"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in serve_and_fail("--data", str(tmp_path / "data"), *arguments)


def test_a_broker_has_the_id_and_the_address_that_it_is_given_and_its_folder_keeps_the_id(tmp_path: Path) -> None:
    settings = ("--config", "node.id=7", "--config", "advertised.listeners=PLAINTEXT://broker.example:19092")
    with Penstock(tmp_path, *settings) as penstock:
        (node,) = wire.call(penstock, *METADATA, topics=[]).brokers
        assert (node.node_id, node.host, node.port) == (7, "broker.example", 19092)
        penstock.arguments = ()
        penstock.restart()
        (node,) = wire.call(penstock, *METADATA, topics=[]).brokers
        assert (node.node_id, node.port) == (7, penstock.port)
        penstock.terminate()
        said = serve_and_fail("--data", str(penstock.data), "--listen", "127.0.0.1:0", "--config", "node.id=8")
        assert f"node.id=8, but the data in {penstock.data} belong to node 7" in said


def test_a_setting_that_was_changed_while_the_broker_ran_is_there_after_a_crash(tmp_path: Path) -> None:
    change = {"name": "max.connections", "config_operation": 0, "value": "3"}
    resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
    with Penstock(tmp_path) as penstock:
        (answer,) = wire.call(penstock, "incremental_alter_configs", 1, resources=[resource]).responses
        assert answer.error_code is ErrorCode.none
        penstock.kill()
        penstock.start()
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(wire.Connection(penstock)) for _ in range(4)]
            for connection in connections[1:]:
                assert connection.call(*METADATA, topics=[]).brokers
            assert connections[0].is_closed_by_server(), "the one that was idle the longest made room"
        penstock.terminate()
        kept = penstock.data / "broker-configs"
        kept.write_bytes(b"neither copy is whole")
        said = serve_and_fail("--data", str(penstock.data), "--listen", "127.0.0.1:0")
        assert f"{kept} is damaged" in said


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert str(file) in serve_and_fail("--data", str(file), "--listen", "127.0.0.1:0")
    assert str(file / "below") in serve_and_fail("--data", str(file / "below"), "--listen", "127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_answers_what_was_asked_and_frees_the_folder(tmp_path: Path, number: signal.Signals) -> None:
    with Penstock(tmp_path) as penstock:
        topic = create_topic(penstock)
        with wire.Connection(penstock) as reader, wire.Connection(penstock) as idle:
            reader.send(*FETCH, **fetch_fields(topic, 0, wait_ms=60_000))
            assert idle.call(*METADATA, topics=[]).brokers
            os.kill(penstock.pid, number)
            assert penstock.process.popen.wait(10) == 0, penstock.process.last_words()
        assert "Traceback" not in penstock.process.output()
        assert not (penstock.data / "broker.json").exists()
        penstock.start()
        assert "recovered" not in penstock.process.output(), "it was stopped cleanly, so there is nothing to recover"


def test_what_was_taken_when_it_is_told_to_stop_is_still_acknowledged(tmp_path: Path) -> None:
    """Many requests are under way all the time; those that are written are answered, and no answer is a lie."""
    acknowledged: dict[int, bytes] = {}
    with Penstock(tmp_path) as penstock:
        topic = create_topic(penstock)
        with wire.Connection(penstock) as connection:
            ids = [connection.send(*PRODUCE, **produce_fields(topic, [b"%d" % number] * 10)) for number in range(400)]
            first = wire.decode(*PRODUCE, connection.receive(), ids[0])
            assert produced(first) == (ErrorCode.none, 0)
            penstock.process.popen.terminate()
            acknowledged[0] = b"0"
            for number, correlation_id in enumerate(ids[1:], 1):
                frame = next_answer(connection)
                if frame is None:
                    break
                assert produced(wire.decode(*PRODUCE, frame, correlation_id)) == (ErrorCode.none, 10 * number)
                acknowledged[10 * number] = b"%d" % number
        assert penstock.process.popen.wait(10) == 0
        penstock.start()
        stored = dict(whole_values(wire.call(penstock, *FETCH, **fetch_fields(topic, 0))))
        assert acknowledged.items() <= stored.items()
        assert len(stored) == 10 * len(acknowledged), "what was written but not acknowledged had been taken"


def next_answer(connection: wire.Connection) -> bytes | None:
    """The next answer, whole, or None if the server has closed the connection instead."""
    try:
        return connection.receive()
    except wire.ConnectionClosed as closed:
        if "after 0 of 4 bytes" in str(closed):
            return None
        raise AssertionError("an answer was cut") from closed


def test_a_client_that_does_not_read_its_answers_cannot_keep_the_broker_from_stopping(tmp_path: Path) -> None:
    with Penstock(tmp_path) as penstock:
        topic = create_topic(penstock)
        for _ in range(8):
            produce(penstock, topic, [b"x" * 1_000_000])
        with wire.Connection(penstock) as deaf:
            for _ in range(5):
                deaf.send(*FETCH, **fetch_fields(topic, 0, max_bytes=8_000_000))
            started = time.monotonic()
            assert penstock.terminate() == 0
            assert time.monotonic() - started < 15


def test_giving_up_durability_is_said_when_it_starts(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--flush", "os") as penstock:
        assert "flush=os: a power cut may lose records" in penstock.process.output()
        topic = create_topic(penstock)
        produce(penstock, topic, [b"kept"])
        penstock.kill()
        penstock.start()
        answer = wire.call(penstock, *FETCH, **fetch_fields(topic, 0))
        assert whole_values(answer) == [(0, b"kept")], "a killed process loses nothing even so"
        said = penstock.process.output()
        assert "recovered: checked " in said
        assert "per GB" not in said, "a few bytes say nothing about how long a large recovery takes"
        penstock.terminate()
        penstock.arguments = ()
        penstock.start()
        assert "acks=all survives a power cut" in penstock.process.output()


def test_a_broker_without_clients_ends_by_itself_if_it_is_told_to(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--exit-when-idle", "1") as penstock:
        with wire.Connection(penstock) as client:
            started = time.monotonic()
            while time.monotonic() - started < 1.5:
                assert client.call(*METADATA, topics=[]).brokers
            assert penstock.process.is_alive()
        started = time.monotonic()
        eventually("it has ended", lambda: not penstock.process.is_alive())
        assert time.monotonic() - started >= 0.9
        assert penstock.process.popen.returncode == 0
        assert "no client for 1 s: stopping" in penstock.process.output()


def test_a_broker_that_nobody_ever_connects_to_ends_by_itself_too(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--exit-when-idle", "0.3") as penstock:
        eventually("it has ended", lambda: not penstock.process.is_alive())
        assert penstock.process.popen.returncode == 0


def test_the_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--metrics", "127.0.0.1:0") as penstock:
        topic = create_topic(penstock)
        produce(penstock, topic, [b"x", b"y"])
        address = json.loads((penstock.data / "broker.json").read_text())["metrics"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        assert all(family.documentation for family in families.values())
        (end,) = [sample for sample in families["penstock_log_end_offset"].samples if sample.labels["topic"] == topic]
        assert (end.labels["partition"], end.value) == ("0", 2)
        requests = {sample.labels["api"]: sample.value for sample in families["penstock_broker_requests"].samples}
        assert sum(requests.values()) == 2
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{address}/nothing", timeout=5)
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=5) as garbage:
            garbage.sendall(b"\x16\x03\x01" * 5000)
            garbage.shutdown(socket.SHUT_WR)
            assert garbage.recv(100) == b""
        assert wire.call(penstock, *METADATA, topics=[]).brokers


def test_logs_for_programs_are_one_json_object_a_line(tmp_path: Path) -> None:
    with Penstock(tmp_path, "--log-format", "json", "--log-level", "debug") as penstock:
        topic = create_topic(penstock)
        produce(penstock, topic, [b"x" * 1000])
        penstock.kill()
        (segment,) = (penstock.data / f"{topic}-0").glob("*.log")
        os.truncate(segment, segment.stat().st_size - 1)
        penstock.start()
        with wire.Connection(penstock) as connection:
            connection.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert connection.is_closed_by_server()
        assert penstock.terminate() == 0
        lines = [line for line in penstock.process.output().splitlines() if not line.startswith("penstock: listening")]
        entries = [json.loads(line) for line in lines]
        assert entries
        cut = [entry for entry in entries if entry.get("partition") == f"{topic}-0"]
        assert cut, entries
        assert str(segment) in cut[0]["message"]
        assert {"time", "level", "logger", "message"} <= set(cut[0])
