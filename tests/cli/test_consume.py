"""`penstock consume`."""

from __future__ import annotations

import datetime
import signal

import pytest

import penstock
from tests.cli.running import Command
from tests.clients import confluent
from tests.clients.names import fresh
from tests.clients.raw_headers import LATIN, send_raw
from tests.clients.waiting import eventually
from tests.servers import Penstock

MORNING = datetime.datetime(2024, 11, 15, 8, 0, tzinfo=datetime.UTC)


@pytest.fixture
def hours(stream: penstock.Connection, topic: str) -> str:
    """A topic with a record for each hour of a morning."""
    for number in range(4):
        stream.send(topic, str(number), timestamp=MORNING + datetime.timedelta(hours=number))
    stream.flush(20)
    return topic


def raw(run: Command, *arguments: str) -> list[str]:
    return run.well("consume", *arguments, "--format", "raw").out.split()


def test_text_tells_where_when_key_and_value(run: Command, stream: penstock.Connection, topic: str) -> None:
    stream.send(topic, "hello", key="ada", headers={"a": "b", "n": None}, timestamp=MORNING)
    stream.send(topic, None, timestamp=MORNING)
    stream.flush(20)
    assert run.well("consume", topic).out.splitlines() == [
        "0:0        2024-11-15T08:00:00.000Z  ada  hello  a=b  n=(no value)",
        "0:1        2024-11-15T08:00:00.000Z  -  (no value)",
    ]


def test_text_cannot_play_with_the_terminal(run: Command, stream: penstock.Connection, topic: str) -> None:
    stream.send(topic, b"\x1b[2Jline\nbreak\xff\tcaf\xc3\xa9").result(20)
    assert run.well("consume", topic).out.rstrip().endswith(r"\x1b[2Jline\nbreak\xff\tcafé")


def test_names_of_headers_that_are_no_utf8_are_text(run: Command, stream: penstock.Connection, topic: str) -> None:
    send_raw(stream.bootstrap, topic, [(b"v", [(LATIN, b"x")])])
    stream.send(topic, "w").result(20)
    first, second = run.well("consume", topic, "--group", fresh("group"), "--format", "json").json_lines
    assert (first["headers"], second["value"]) == ([[r"gr\xf6\xdfe", "x"]], "w")


def test_json_is_an_object_a_line(run: Command, stream: penstock.Connection, topic: str) -> None:
    stream.send(topic, "v\n\u2028", key=b"\xff", headers=[("a", "b"), ("a", b"\xfe"), ("n", None)], timestamp=MORNING)
    stream.send(topic, None, timestamp=MORNING)
    stream.flush(20)
    first, second = run.well("consume", topic, "--format", "json").json_lines
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_731_657_600_000,
        "key_base64": "/w==",
        "value": "v\n\u2028",
        "headers": [["a", "b"], ["a", {"base64": "/g=="}], ["n", None]],
    }
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)


def test_raw_is_the_bytes_and_nothing_else(run: Command, numbers: str) -> None:
    assert run.well("consume", numbers, "--format", "raw").out == "".join(f"{number}\n" for number in range(10))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("earliest", ["0", "1", "2", "3"]),
        ("latest", []),
        ("2", ["2", "3"]),
        ("4", []),
        ("2024-11-15T10:00Z", ["2", "3"]),
        ("2024-11-15T10:00:00.001Z", ["3"]),
        ("1731664800000", ["2", "3"]),
        ("@1", ["0", "1", "2", "3"]),
        ("-1h", []),
        ("-999w", ["0", "1", "2", "3"]),
    ],
)
def test_reading_begins_where_it_is_told(run: Command, hours: str, position: str, expected: list[str]) -> None:
    assert raw(run, hours, "--from", position) == expected


def test_reading_ends_at_the_limit(run: Command, numbers: str) -> None:
    assert raw(run, numbers, "--limit", "3") == ["0", "1", "2"]
    assert raw(run, numbers, "-n", "0") == []


def test_some_partitions_can_be_read(run: Command, stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=3)
    for number in range(6):
        stream.send(topic, str(number), partition=number % 3)
    stream.flush(20)
    assert raw(run, topic, "-p", "1") == ["1", "4"]
    assert raw(run, topic, "-p", "2", "--from", "1") == ["5"]
    done = run("consume", topic, "-p", "7")
    assert done.code == 1
    assert "has no partition 7" in done.err


def test_several_topics_and_patterns_are_read_with_the_topic_on_each_line(
    run: Command, stream: penstock.Connection
) -> None:
    prefix = fresh()
    for letter in "ab":
        stream.send(f"{prefix}.{letter}", letter, timestamp=MORNING).result(20)
    expected = [f"{prefix}.{letter}  0:0        2024-11-15T08:00:00.000Z  -  {letter}" for letter in "ab"]
    assert sorted(run.well("consume", f"{prefix}.a", f"{prefix}.b").out.splitlines()) == expected
    assert sorted(run.well("consume", "--pattern", rf"{prefix}\..*").out.splitlines()) == expected
    assert sorted(raw(run, "--pattern", rf"{prefix}\..")) == ["a", "b"]


def test_a_deleted_offset_is_an_error_that_names_the_range(run: Command, server: Penstock, numbers: str) -> None:
    confluent.delete_records(server, numbers, before=6)
    done = run("consume", numbers, "--from", "3")
    assert done.code == 1
    assert f"{numbers}-0: offset 3 was deleted by retention; the log holds 6 to 10" in done.err
    assert raw(run, numbers) == ["6", "7", "8", "9"]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["no-such-topic"], 1, "there is no such topic"),
        (["x", "--from", "yesterday"], 2, "'yesterday' is not a position"),
        (["x", "--from", "-5"], 2, "'-5' is not a position"),
        (["x", "--timeout", "1"], 2, "it needs --follow"),
        (["x", "--group", "g", "--partition", "0"], 2, "the group assigns the partitions"),
        (["x", "--group", "g", "--from", "42"], 2, "penstock groups reset"),
        (["no-such-topic", "--group", "g"], 1, "there is no topic 'no-such-topic'"),
        (["x", "--format", "xml"], 2, "--format"),
        ([], 2, "name topics, or pass --pattern"),
        (["x", "--pattern", "y"], 2, "and not both"),
        (["--pattern", "(y"], 2, "not a regular expression"),
        (["x", "y", "--partition", "0"], 2, "it needs one topic"),
        (["x", "y", "--group", "g"], 2, "a group reads one topic here"),
        (["x", "y", "--from", "42"], 1, "in one topic only"),
        (["amqp://localhost/jobs"], 1, "is not a URL of a stream, but of a queue: use App.handle(URL)"),
        (["x", "--url", "amqp://localhost/jobs"], 1, "`penstock gateway` to carry it into a stream"),
        (["redis://localhost"], 2, "give it as --url, and here the name of a topic"),
    ],
)
def test_what_cannot_be_done_is_told(run: Command, arguments: list[str], code: int, complaint: str) -> None:
    done = run("consume", *arguments)
    assert (done.code, "Traceback" in done.err) == (code, False)
    assert complaint in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_following_shows_what_comes_at_once_until_interrupted(
    run: Command, stream: penstock.Connection, numbers: str, number: signal.Signals, code: int
) -> None:
    process = run.start("consume", numbers, "--follow", "--from", "8", "--format", "raw")
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["8\n", "9\n"]
    stream.send(numbers, "10").result(20)
    assert process.stdout.readline() == "10\n"
    process.send_signal(number)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (code, "")


def test_following_ends_when_nothing_comes_for_long(run: Command, numbers: str) -> None:
    assert len(raw(run, numbers, "--follow", "--timeout", "0.5")) == 10


def test_a_group_goes_on_where_it_was(run: Command, stream: penstock.Connection, numbers: str) -> None:
    group = fresh("group")
    assert raw(run, numbers, "--group", group, "--limit", "4") == ["0", "1", "2", "3"]
    assert raw(run, numbers, "--group", group) == ["4", "5", "6", "7", "8", "9"]
    assert raw(run, numbers, "--group", group) == []
    stream.send(numbers, "10").result(20)
    assert raw(run, numbers, "--group", group) == ["10"]


def test_a_new_group_may_begin_with_what_is_to_come(run: Command, numbers: str) -> None:
    assert raw(run, numbers, "--group", fresh("group"), "--from", "latest") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_member_has_committed_what_it_wrote(
    run: Command, numbers: str, number: signal.Signals, code: int
) -> None:
    group = fresh("group")
    process = run.start("consume", numbers, "--group", group, "--follow", "--format", "raw")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(10)] == [f"{value}\n" for value in range(10)]
    process.send_signal(number)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (code, "")
    described = run.well("groups", "describe", group, "--json").json
    assert described["partitions"][0]["committed"] in (9, 10), "the record in hand may be read again, no other"


def test_two_members_share_the_partitions(run: Command, stream: penstock.Connection) -> None:
    topic, group = fresh(), fresh("group")
    stream.create_topic(topic, partitions=4)
    members = [run.start("consume", topic, "--group", group, "--follow", "--format", "raw") for _ in range(2)]
    try:

        def shares() -> list[int]:
            done = run("groups", "describe", group, "--json")
            return [len(each["assignment"]) for each in done.json["members"]] if done.code == 0 else []

        eventually("each has half", lambda: shares() == [2, 2], timeout_s=60)
        for number in range(20):
            stream.send(topic, str(number), partition=number % 4)
        stream.flush(20)
        seen = [line for member in members if member.stdout for line in (member.stdout.readline() for _ in range(10))]
        assert sorted(int(line) for line in seen) == list(range(20))
    finally:
        for member in members:
            member.terminate()
            member.communicate(timeout=60)
