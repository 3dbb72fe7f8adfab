"""`penstock groups`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.checkpoints.opening import open_store
from tests.cli.forked import ForkedCommand
from tests.cli.running import Command
from tests.clients.names import fresh
from tests.clients.waiting import eventually


@pytest.fixture
def group(run: Command, numbers: str) -> str:
    """A group that has read four of ten records."""
    name = fresh("group")
    run.well("consume", numbers, "--group", name, "--limit", "4")
    return name


def committed(run: Command, group: str) -> dict[int, int | None]:
    partitions = run.well("groups", "describe", group, "--json").json["partitions"]
    return {each["partition"]: each["committed"] for each in partitions}


def test_groups_are_listed_with_their_lag(run: Command, group: str) -> None:
    (row,) = [row for row in run.well("groups").table if row[0] == group]
    assert row == [group, "empty", "0", "6", "0", "kafka", "group"]
    (entry,) = [each for each in run.well("groups", "list", "--json").json if each["group"] == group]
    assert entry == {"group": group, "state": "empty", "members": 0, "lag": 6, "unread": 0, "kept": "kafka group"}


def test_a_group_is_described(run: Command, group: str, numbers: str) -> None:
    described = run.well("groups", "describe", group, "--json").json
    assert described["partitions"] == [
        {
            "topic": numbers,
            "partition": 0,
            "committed": 4,
            "end": 10,
            "lag": 6,
            "unread": None,
            "member": None,
            "host": None,
        }
    ]
    shown = run.well("groups", "describe", group).out.splitlines()
    assert shown[0] == f"{group}: empty, 0 members, lag 6"
    assert shown[1] == "Continues at its committed offsets in Kafka."
    assert shown[4].split() == [numbers, "0", "4", "10", "6", "-", "-", "-"]


def test_members_are_shown_with_what_they_read(run: Command, numbers: str) -> None:
    group = fresh("group")
    process = run.start("consume", numbers, "--group", group, "--follow")
    try:

        def described_with_members() -> dict[str, Any]:
            done = run("groups", "describe", group, "--json")
            has_members = done.code == 0 and any(each["assignment"] for each in done.json["members"])
            return dict(done.json) if has_members else {}

        described = eventually("the member has its partition", described_with_members, timeout_s=60)
        (member,) = described["members"]
        assert member["client_id"] == "penstock-cli"
        assert member["assignment"] == [{"topic": numbers, "partition": 0}]
        assert described["state"] == "stable"
        assert described["partitions"][0]["member"] == "penstock-cli"

        refused = run("groups", "reset", group, "--to", "earliest", "--execute")
        assert refused.code == 1
        assert "is stable with 1 member (penstock-cli at " in refused.err
        assert "stop them first" in refused.err
        refused = run("groups", "delete", group, "--yes")
        assert refused.code == 1
        assert "is stable with 1 member (penstock-cli at " in refused.err
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", 0),
        ("latest", 10),
        ("7", 7),
        ("+3", 7),
        ("-3", 1),
        ("-100", 0),
        ("+100", 10),
        ("99", 10),
        ("-1h", 0),
    ],
)
def test_a_group_is_moved_after_showing_what_would_be(run: Command, group: str, to: str, expected: int) -> None:
    planned = run.well("groups", "reset", group, "--to", to, "--json").json
    assert planned["executed"] is False
    assert (planned["partitions"][0]["committed"], planned["partitions"][0]["to"]) == (4, expected)
    assert committed(run, group) == {0: 4}, "showing moves nothing"
    assert run.well("groups", "reset", group, "--to", to, "--execute", "--json").json["executed"] is True
    assert committed(run, group) == {0: expected}


def test_a_group_is_moved_to_a_time(run: Command, stream: penstock.Connection, topic: str) -> None:
    morning = datetime.datetime(2024, 11, 15, 8, 0, tzinfo=datetime.UTC)
    for number in range(4):
        stream.send(topic, str(number), timestamp=morning + datetime.timedelta(hours=number))
    stream.flush(20)
    group = fresh("group")
    run.well("groups", "reset", group, "--topic", topic, "--to", "2024-11-15T10:00Z", "--execute")
    assert run.well("consume", topic, "--group", group, "--format", "raw").out.split() == ["2", "3"]


def test_the_plan_says_what_is_cut_short(run: Command, group: str, numbers: str) -> None:
    done = run.well("groups", "reset", group, "--to", "99")
    assert done.table[0][:5] == [numbers, "0", "4", "10", "6"]
    assert "the current end" in done.out
    assert "Add --execute to do it" in done.err
    assert "nothing to move" in run.well("groups", "reset", group, "--to", "4").err


def test_only_some_partitions_can_be_moved(run: Command, stream: penstock.Connection) -> None:
    topic, group = fresh(), fresh("group")
    stream.create_topic(topic, partitions=3)
    for number in range(6):
        stream.send(topic, str(number), partition=number % 3)
    stream.flush(20)
    run.well("consume", topic, "--group", group)
    run.well("groups", "reset", group, "--to", "earliest", "--partition", "1", "--execute")
    assert committed(run, group) == {0: 2, 1: 0, 2: 2}
    done = run("groups", "reset", group, "--to", "earliest", "--partition", "9")
    assert (done.code, "no partition 9" in done.err) == (1, True)


def test_a_group_that_does_not_exist_yet_can_be_given_a_place_to_begin(run: Command, numbers: str) -> None:
    group = fresh("group")
    run.well("groups", "reset", group, "--topic", numbers, "--to", "8", "--execute")
    assert run.well("consume", numbers, "--group", group, "--format", "raw").out.split() == ["8", "9"]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["describe", "no-such-group"], 1, "there is no group 'no-such-group'"),
        (["reset", "no-such-group", "--to", "earliest"], 1, "there is no group"),
        (["reset", "no-such-group", "--topic", "no-such-topic", "--to", "earliest"], 1, "there is no topic"),
        (["reset", "g", "--to", "soon"], 2, "'soon' is not a position"),
        (["reset", "g"], 2, "--to"),
        (["delete", "no-such-group", "--yes"], 1, "there is no group"),
    ],
)
def test_what_cannot_be_done_is_told(run: Command, arguments: list[str], code: int, complaint: str) -> None:
    done = run("groups", *arguments)
    assert (done.code, "Traceback" in done.err) == (code, False)
    assert complaint in done.err


def test_shifting_needs_something_to_shift_from(run: Command, numbers: str) -> None:
    done = run("groups", "reset", fresh("group"), "--topic", numbers, "--to", "-1")
    assert done.code == 1
    assert "has committed nothing" in done.err


def test_a_group_is_deleted(run: Command, group: str) -> None:
    refused = run("groups", "delete", group)
    assert (refused.code, "pass --yes" in refused.err) == (2, True)
    run.well("groups", "delete", group, "--yes")
    assert group not in {each["group"] for each in run.well("groups", "--json").json}


def test_a_group_cannot_send_commands_to_the_terminal(run: Command, numbers: str) -> None:
    group = fresh("group") + "\n\x1b[2J\x9b1m"
    shown = group.replace("\n", r"\n").replace("\x1b", r"\x1b").replace("\x9b", r"\x9b")
    run.well("consume", numbers, "--group", group, "--limit", "4")
    for command in (["groups"], ["groups", "describe", group], ["lag"], ["groups", "reset", group, "--to", "earliest"]):
        done = run.well(*command)
        assert all(line.isprintable() for line in (done.out + done.err).split("\n")), command
    assert shown in run.well("groups").out
    done = run.well("groups", "--json")
    assert all(line.isprintable() for line in done.out.split("\n"))
    assert group in [each["group"] for each in done.json]
    missing = run("groups", "describe", "no\x1b[2J")
    assert missing.code == 1
    assert "\x1b" not in missing.err


def test_a_partition_without_a_commit_is_shown_with_what_is_unread(run: Command, stream: penstock.Connection) -> None:
    topic, group = fresh(), fresh("group")
    stream.create_topic(topic, partitions=2)
    for number in range(7):
        stream.send(topic, str(number), partition=0 if number < 2 else 1)
    stream.flush(20)
    stream.group_admin().move(group, {(topic, 0): 2})
    shown = run.well("groups", "describe", group).out.splitlines()
    assert shown[0] == f"{group}: empty, 0 members, lag 0, 1 partition not read yet (5 records)"
    assert [line.split()[1:6] for line in shown[4:]] == [["0", "2", "2", "0", "-"], ["1", "-", "5", "-", "5"]]
    described = run.well("groups", "describe", group, "--json").json
    assert (described["lag"], described["unread"]) == (0, 5)
    (row,) = run.well("lag", "--group", group, "--for", "0s", "--json").json
    assert (row["lag"], row["unread"]) == (0, 5)
    run.well("groups", "reset", group, "--to", "earliest", "--execute")
    assert committed(run, group) == {0: 0, 1: 0}, "also where it had committed nothing"


@pytest.fixture(params=["in the stream", "elsewhere"])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """What tells a command where an app keeps its checkpoints: nothing, where it is the default."""
    return [] if request.param == "in the stream" else ["--checkpoints", f"sqlite:{tmp_path}/c.db"]


def handled(stream: penstock.Connection, topic: str, group: str, checkpoints: list[str]) -> list[int]:
    app = penstock.App(stream.url, group=group, checkpoints=checkpoints[1] if checkpoints else None)
    got: list[int] = []

    @app.handle(topic, end="latest")
    def note(record: penstock.Record) -> None:
        assert record.value is not None
        got.append(int(record.value))

    app.run()
    return got


def test_an_app_is_reset_and_deleted_by_its_checkpoints(
    run: Command, stream: penstock.Connection, numbers: str, checkpoints: list[str]
) -> None:
    group, where = fresh("group"), checkpoints[1] if checkpoints else "kafka:"
    assert handled(stream, numbers, group, checkpoints) == list(range(10))
    described = run.well("groups", "describe", group, *checkpoints).out
    assert f"Continues at its checkpoints in {where}." in described
    done = run.well("groups", "reset", group, "--to", "6", "--execute", *checkpoints)
    assert f"Moved {group} in 1 partition: checkpoints in {where}, the Kafka group's offsets." in done.err
    (row,) = run.well("lag", "--group", group, "--for", "0s", "--json", *checkpoints).json
    assert row["lag"] == 4
    assert handled(stream, numbers, group, checkpoints) == [6, 7, 8, 9]
    again = run("groups", "reset", group, "--to", "latest", "--execute", *checkpoints)
    assert (again.code, "Nothing was moved" in again.err) == (1, True)
    done = run.well("groups", "delete", group, "--yes", *checkpoints)
    assert f"Deleted group {group}: checkpoints in {where}, the Kafka group's offsets." in done.err
    assert group not in {each["group"] for each in run.well("groups", "--json", *checkpoints).json}
    assert handled(stream, numbers, group, checkpoints) == list(range(10))


def test_an_app_whose_checkpoints_are_elsewhere_is_not_moved_in_kafka_alone(
    run: Command, stream: penstock.Connection, numbers: str, tmp_path: Path
) -> None:
    group = fresh("group")
    handled(stream, numbers, group, ["--checkpoints", f"sqlite:{tmp_path}/c.db"])
    for action in (["reset", group, "--to", "earliest", "--execute"], ["delete", group, "--yes"]):
        done = run("groups", *action)
        assert (done.code, "belongs to an app" in done.err, "--checkpoints" in done.err) == (1, True, True)
    assert "whose checkpoints were not found" in run.well("groups", "describe", group).out
    absent = run("groups", "describe", group, "--checkpoints", f"sqlite:{tmp_path}/none.db")
    assert (absent.code, "there are no checkpoints in" in absent.err) == (1, True)
    open_store(f"sqlite:{tmp_path}/other.db").close()
    wrong = run("groups", "reset", group, "--to", "earliest", "--checkpoints", f"sqlite:{tmp_path}/other.db")
    assert (wrong.code, "Kafka has a group of this name" in wrong.err) == (1, True)


def test_the_apps_of_a_log_are_found_beside_its_records(tmp_path: Path) -> None:
    url = f"log:{tmp_path}/data"
    with penstock.connect(url) as stream:
        for number in range(3):
            stream.send("numbers", str(number))
        stream.flush(20)
        assert handled(stream, "numbers", "bill", []) == [0, 1, 2]
        run = ForkedCommand(url)
        done = run.well("groups", "reset", "bill", "--to", "earliest", "--execute")
        assert f"checkpoints in sqlite:{tmp_path}/data/checkpoints.sqlite" in done.err
        assert run.well("groups", "--json").json[0]["lag"] == 3
        assert handled(stream, "numbers", "bill", []) == [0, 1, 2]
