"""The commands that show and move groups, on systems other than Kafka."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.dead_letters.opening import open_dead_letters
from penstock.model import DeadLetterFilter, Position
from tests.cli.forked import ForkedCommand
from tests.cli.running import Command
from tests.clients.worked_stream import GROUP, LETTERS, TOPIC, work
from tests.redis_server import RedisServer

LONG_NUMBER = re.compile(r"\d{17,}")
REDIS_ID = re.compile(r"\d{13}-\d+")
NOT_COUNTED = "do not count records"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        work(server.url)
        yield ForkedCommand(server.url)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Command:
    folder = tmp_path_factory.mktemp("files") / "records"
    folder.mkdir()
    work(f"file:{folder}")
    return ForkedCommand(f"file:{folder}")


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Command:
    url = f"sqlite:{tmp_path_factory.mktemp('sqlite') / 'records.db'}"
    work(url)
    return ForkedCommand(url)


def test_the_log_names_a_letters_record_in_the_systems_own_form(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "records").mkdir()
    work(f"file:{tmp_path / 'records'}")
    told = r"bill moved 1 record to its dead letters; the last is orders-0 at 0/\d+, after 1 attempt: ValueError"
    assert re.search(told, caplog.text)


@pytest.mark.parametrize(("system", "pointer"), [("redis", REDIS_ID), ("file", re.compile(r"0/\d+"))])
def test_a_group_is_found_and_its_lag_is_told_in_time(
    system: str, pointer: re.Pattern[str], request: pytest.FixtureRequest
) -> None:
    run: Command = request.getfixturevalue(system)
    (row,) = run.well("groups", "--json").json
    assert (row["group"], row["members"], row["lag"], row["unread"]) == (GROUP, 0, None, 0)
    listed = run.well("groups")
    assert listed.table[0][:4] == [GROUP, "empty", "0", "-"]
    assert NOT_COUNTED in listed.err

    described = run.well("groups", "describe", GROUP)
    assert f"{GROUP}: empty, 0 members, lag unknown, " in described.out
    assert not LONG_NUMBER.search(described.out)
    (partition,) = run.well("groups", "describe", GROUP, "--json").json["partitions"]
    assert pointer.fullmatch(partition["committed"])
    assert pointer.fullmatch(partition["end"])
    assert partition["lag"] is None

    (lag,) = run.well("lag", "--json", "--for", "0s").json
    assert (lag["lag"], lag["is_counted"], lag["lost"]) == (None, False, 0)
    assert lag["lag_s"] > 0
    shown = run.well("lag", "--for", "0s")
    assert shown.table[0][:3] == [GROUP, TOPIC, "-"]
    assert NOT_COUNTED in shown.err
    assert run("lag", "--for", "0s", "--fail-if-lag-s", "0").code == 1


def test_a_group_of_a_stream_with_offsets_has_a_lag_in_records(sqlite: Command) -> None:
    (row,) = sqlite.well("groups", "--json").json
    assert (row["group"], row["lag"]) == (GROUP, 3)
    described = sqlite.well("groups", "describe", GROUP)
    assert f"{GROUP}: empty, 0 members, lag 3\n" in described.out
    assert NOT_COUNTED not in described.err
    (lag,) = sqlite.well("lag", "--json", "--for", "0s").json
    assert (lag["lag"], lag["is_counted"]) == (3, True)


def test_topics_have_pointers_in_the_systems_own_form_and_say_that_settings_are_unknown(
    redis: Command, file: Command
) -> None:
    described = redis.well("topics", "describe", TOPIC)
    assert len(REDIS_ID.findall(described.out)) == 2
    assert "Its settings are not known" in described.out
    assert "broker" not in described.out
    assert redis.well("topics", "describe", TOPIC, "--json").json["partitions"][0]["records"] == 8  # Redis counts them
    (partition,) = file.well("topics", "describe", TOPIC, "--json").json["partitions"]
    assert partition["records"] is None


def test_dead_letters_have_pointers_in_the_systems_own_form(redis: Command) -> None:
    listed = redis.well("dlq", "list", LETTERS)
    assert re.search(rf"{TOPIC}-0:\d{{13}}-\d+", listed.out)
    (letter,) = redis.well("dlq", "list", LETTERS, "--json").json
    assert REDIS_ID.fullmatch(letter["record"]["pointer"])
    shown = redis.well("dlq", "show", LETTERS, letter["id"])
    assert f"record     {TOPIC}-0 at {letter['record']['pointer']}\n" in shown.out


def test_letters_beside_the_stream_have_pointers_in_its_form(redis: Command, tmp_path: Path) -> None:
    (letter,) = redis.well("dlq", "list", LETTERS, "--json").json
    url = redis.environment["PENSTOCK_URL"]
    beside = f"sqlite:{tmp_path / 'letters.db'}"
    with penstock.connect(url) as stream:
        found = open_dead_letters(LETTERS, stream)
        letters = list(found.browse(DeadLetterFilter()))
        found.close()
    store = open_dead_letters(beside, None)
    store.put(letters)
    store.close()
    assert letter["record"]["pointer"] in redis.well("dlq", "show", beside, letter["id"]).out


def test_a_group_is_moved_to_a_pointer_in_the_systems_own_form(redis: Command) -> None:
    url = redis.environment["PENSTOCK_URL"]
    with penstock.connect(url) as stream, contextlib.closing(stream.open_topic(TOPIC)) as opened:
        first = opened.locate(0, Position.EARLIEST)
        text = stream.pointer_text(opened.read(0, first, 3, 1.0)[2].offset)
    planned = redis.well("groups", "reset", GROUP, "--to", f"offset:{text}", "--json").json
    assert planned["executed"] is False
    (move,) = planned["partitions"]
    assert (move["to"], move["by"]) == (text, None)
    refused = redis("groups", "reset", GROUP, "--to", "-2")
    assert refused.code == 2
    assert "which this stream does not count" in refused.err
    wrong = redis("groups", "reset", GROUP, "--to", "offset:somewhere")
    assert wrong.code == 2
    assert "1526919030474-55" in wrong.err


def test_a_group_that_was_moved_reads_from_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:{tmp_path_factory.mktemp('moved') / 'records.db'}"
    work(url)
    run = ForkedCommand(url)
    assert "Moved bill in 1 partition" in run.well("groups", "reset", GROUP, "--to", "earliest", "--execute").err
    assert run.well("groups", "--json").json[0]["lag"] == 8
    run.well("groups", "delete", GROUP, "--yes")
    assert run.well("groups", "--json").json == []


def test_without_groups_the_hint_fits_the_system(tmp_path: Path) -> None:
    run = ForkedCommand(f"sqlite:{tmp_path / 'records.db'}")
    run.well("topics", "create", TOPIC)
    for command in (("groups",), ("lag", "--for", "0s")):
        told = run.well(*command).err
        assert "An app that reads with group=NAME creates one" in told
        assert "consume" not in told


def test_an_alert_on_records_is_said_to_be_of_no_use_where_they_are_not_counted(redis: Command, tmp_path: Path) -> None:
    rules = str(tmp_path / "alerts.json")
    redis.well("alerts", "add", "many", "--kind", "lag", "--threshold", "1", "--rules", rules)
    redis.well("alerts", "add", "old", "--kind", "lag_s", "--threshold", "0.001", "--rules", rules)
    checked = redis("alerts", "check", "--rules", rules, "--look-for", "0.1s", "--json")
    assert [each["rule"] for each in checked.json] == ["old"]
    assert "many" in checked.err
    assert "lag_s" in checked.err


def test_metrics_leave_out_what_is_not_counted(redis: Command) -> None:
    text = redis.well("metrics", "--once").out
    assert 'penstock_reader_lag_seconds{group="bill",partition="0",topic="orders"}' in text
    assert "penstock_reader_lag_records{" not in text
    assert 'penstock_topic_records{topic="orders"} 8.0' in text
