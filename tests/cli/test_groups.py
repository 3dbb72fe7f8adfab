"""`penstock groups`."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

import penstock
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
    assert row == [group, "empty", "0", "6"]
    (entry,) = [each for each in run.well("groups", "list", "--json").json if each["group"] == group]
    assert entry == {"group": group, "state": "empty", "members": 0, "lag": 6}


def test_a_group_is_described(run: Command, group: str, numbers: str) -> None:
    described = run.well("groups", "describe", group, "--json").json
    assert described["partitions"] == [
        {"topic": numbers, "partition": 0, "committed": 4, "end": 10, "lag": 6, "member": None, "host": None}
    ]
    shown = run.well("groups", "describe", group).out.splitlines()
    assert shown[0] == f"{group}: empty, 0 members, lag 6"
    assert shown[3].split() == [numbers, "0", "4", "10", "6", "-", "-"]


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
        assert "is stable with 1 members: stop them first" in refused.err
        refused = run("groups", "delete", group, "--yes")
        assert refused.code == 1
        assert "it has members; stop them first" in refused.err
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
    assert "the present end" in done.out
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
        (["reset", "g", "--to", "soon"], 2, "'soon' is no position"),
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
    assert (refused.code, "add --yes" in refused.err) == (2, True)
    run.well("groups", "delete", group, "--yes")
    assert group not in {each["group"] for each in run.well("groups", "--json").json}
