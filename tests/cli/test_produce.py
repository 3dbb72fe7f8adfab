"""`penstock produce`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

import penstock
from tests.cli.running import COMMAND, Command
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Penstock


def values(stream: penstock.Connection, topic: str) -> list[bytes | None]:
    return [record.value for record in stream.read(topic)]


def test_each_line_is_a_record(run: Command, stream: penstock.Connection, topic: str) -> None:
    done = run.well("produce", topic, given="one\n\n three \u00fc\r\nlast without end")
    assert values(stream, topic) == [b"one", b"", " three \u00fc\r".encode(), b"last without end"]
    assert done.out == ""
    assert done.err.startswith("4 records acknowledged in ")


def test_bytes_that_are_no_text_pass_through(run: Command, stream: penstock.Connection, topic: str) -> None:
    run.well("produce", topic, given=b"\xff\x00\xfe\n")
    assert values(stream, topic) == [b"\xff\x00\xfe"]


def test_nothing_to_read_sends_nothing(run: Command, stream: penstock.Connection, topic: str) -> None:
    assert run.well("produce", topic).err.startswith("0 records acknowledged")
    assert values(stream, topic) == []


def test_a_file_can_be_read(run: Command, stream: penstock.Connection, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    run.well("produce", topic, "--file", str(tmp_path / "lines"))
    assert values(stream, topic) == [b"a", b"b"]
    assert run("produce", topic, "--file", str(tmp_path / "missing")).code == 2


def test_a_line_can_carry_a_key(run: Command, stream: penstock.Connection, topic: str) -> None:
    run.well("produce", topic, "--key-separator", "=>", "--header", "from=here", given="ada=>1=>2\n=>no key\n")
    records = list(stream.read(topic))
    assert [(record.key, record.value) for record in records] == [(b"ada", b"1=>2"), (b"", b"no key")]
    assert {record.headers for record in records} == {(("from", b"here"),)}


def test_json_lines_can_say_everything(run: Command, stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=2)
    lines = [
        {"value": "text", "key": "k", "headers": {"a": "b"}, "timestamp": 1_700_000_000_000, "partition": 1},
        {"value": {"n": [1, None]}, "headers": [["a", None], ["a", {"base64": "/w=="}]], "partition": 1},
        {"value": None, "key": 7, "partition": 1},
        {"value_base64": "/wA=", "key_base64": "AP8=", "partition": 1},
    ]
    run.well("produce", topic, "--json", given="".join(json.dumps(line) + "\n" for line in lines))
    first, second, third, fourth = stream.read(topic)
    assert (first.key, first.value, first.partition) == (b"k", b"text", 1)
    assert (first.headers, first.timestamp_ms) == ((("a", b"b"),), 1_700_000_000_000)
    assert (second.value, second.headers) == (b'{"n":[1,null]}', (("a", None), ("a", b"\xff")))
    assert (third.key, third.value) == (b"7", None)
    assert (fourth.key, fourth.value) == (b"\x00\xff", b"\xff\x00")


def test_what_was_consumed_can_be_produced_again(run: Command, stream: penstock.Connection, topic: str) -> None:
    stream.send(topic, b"\xff", key="k", headers=[("a", b"\xff"), ("a", None)], timestamp=1_700_000_000_000)
    stream.send(topic, None, key="gone", timestamp=1_700_000_000_001)
    stream.send(topic, "caf\u00e9 \u2028", timestamp=1_700_000_000_002)
    stream.flush(20)
    copy = fresh()
    run.well("produce", copy, "--json", given=run.well("consume", topic, "--format", "json").out)
    original, copied = list(stream.read(topic)), list(stream.read(copy))
    assert [(each.key, each.value, each.headers, each.timestamp_ms) for each in original] == [
        (each.key, each.value, each.headers, each.timestamp_ms) for each in copied
    ]


def test_a_line_that_cannot_be_understood_ends_it_by_its_number(
    run: Command, stream: penstock.Connection, topic: str
) -> None:
    """What came before is stored, and what comes after is not sent."""
    done = run("produce", topic, "--json", given='{"value": "good"}\n{oops\n{"value": "never"}\n')
    assert done.code == 1
    assert done.err.startswith("penstock: line 2: not JSON: ")
    assert "1 record acknowledged" in done.err
    assert values(stream, topic) == [b"good"]


def test_a_line_without_the_separator_ends_it_by_its_number(run: Command, topic: str) -> None:
    done = run("produce", topic, "--key-separator", ":", given="a:1\nb 2\n")
    assert done.code == 1
    assert "line 2: the key separator ':' is not in it. 1 record acknowledged" in done.err


def test_a_record_that_is_refused_ends_it_by_its_number(run: Command, topic: str) -> None:
    done = run("produce", topic, given=b"fits\n" + b"x" * 2_000_000 + b"\n")
    assert done.code == 1
    assert "line 2: " in done.err
    assert "raise max.message.bytes" in done.err
    assert "1 record acknowledged" in done.err
    assert "1 of those sent were not" in done.err


def test_a_partition_that_is_not_there_ends_it(run: Command, topic: str) -> None:
    done = run("produce", topic, "--partition", "9", given="a\n")
    assert done.code == 1
    assert "line 1: " in done.err
    assert "no such partition" in done.err


@pytest.mark.parametrize("options", [["--acks", "1"], ["--acks", "0"], ["--compression", "zstd"], ["--partition", "0"]])
def test_options_of_sending_are_obeyed(
    run: Command, stream: penstock.Connection, topic: str, options: list[str]
) -> None:
    run.well("produce", topic, *options, given="".join(f"{number}\n" for number in range(1000)))
    eventually("all are stored", lambda: values(stream, topic) == [b"%d" % number for number in range(1000)])


def test_the_rate_is_kept(run: Command, topic: str) -> None:
    started_s = time.monotonic()
    run.well("produce", topic, "--rate", "20", given="x\n" * 21)
    assert time.monotonic() - started_s >= 1.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--json", "--key-separator", ":"], "omit it"),
        (["--header", "x"], "is not NAME=VALUE"),
        (["--acks", "2"], "--acks"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    run: Command, topic: str, options: list[str], complaint: str
) -> None:
    done = run("produce", topic, *options)
    assert done.code == 2
    assert complaint in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_delivers_what_it_has_read(
    run: Command, stream: penstock.Connection, topic: str, number: signal.Signals, code: int
) -> None:
    process = run.start("produce", topic)
    assert process.stdin is not None
    process.stdin.write("one\ntwo\n")
    process.stdin.flush()
    eventually("the lines are stored as they come", lambda: len(values(stream, topic)) == 2)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == code
    assert complaints.startswith("2 records acknowledged in ")


def test_interrupted_while_the_broker_is_away_it_says_what_is_not_stored(tmp_path: Path) -> None:
    with Penstock(tmp_path) as own:
        process = Command(f"kafka://{own.bootstrap}").start("produce", "orders")
        assert process.stdin is not None
        process.stdin.write("stored\n")
        process.stdin.flush()
        with penstock.connect(f"kafka://{own.bootstrap}") as stream:
            eventually("the topic is there", lambda: "orders" in stream.topics())
            eventually("the line is stored", lambda: values(stream, "orders") == [b"stored"])
        own.kill()
        process.stdin.write("lost\n")
        process.stdin.flush()
        process.stdin.close()  # the command waits for the acknowledgement of its last line
        process.stdin = None
        started_s = time.monotonic()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
        assert time.monotonic() - started_s < 30
        assert process.returncode == 130
        assert "1 record acknowledged" in complaints


def test_on_a_terminal_it_shows_how_far_it_has_come(run: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n" * 1000)
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "produce", topic, "--file", str(tmp_path / "lines"), "--rate", "2000"],
        stdin=subprocess.DEVNULL,
        stderr=terminal,
        env={**run.environment, "TERM": "xterm"},
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                shown += os.read(screen, 10_000)
            except OSError:  # the other end is closed
                break
        assert process.wait(60) == 0
    os.close(screen)
    assert b"sent," in shown
    assert b"1,000 records acknowledged" in shown
