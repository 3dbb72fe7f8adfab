"""The commands that show and move groups, on systems other than Kafka whose pointers count records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.cli.forked import ForkedCommand
from tests.cli.running import Command, Done
from tests.clients.worked_stream import GROUP, LETTERS, TOPIC, work
from tests.systems import every_system as systems

KEPT_S: Final = 86_400
SYSTEMS: Final = {
    systems.nats: f"max_age_s={KEPT_S}",
    systems.managed_rabbitmq_stream: f"max_age_s={KEPT_S}",
    systems.postgres: "",
}
"""With the settings that say how long new topics keep their records; tables keep them for ever."""


@dataclass(frozen=True)
class Worked:
    """A system on which an app has run: three records wait."""

    run: Command
    store: tuple[str, str]
    """The option that names the checkpoints of the app."""
    kept_s: int | None

    def json(self, *arguments: str) -> Any:
        return self.well(*arguments, "--json").json

    def well(self, *arguments: str) -> Done:
        return self.run.well(*arguments, *self.store)


@pytest.fixture(scope="module", params=SYSTEMS)
def worked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    folder = tmp_path_factory.mktemp("system")
    with request.param(folder) as url:
        settings = SYSTEMS[request.param]
        if settings:
            url = f"{url}{'&' if '?' in url else '?'}{settings}"
        checkpoints = f"sqlite:{folder / 'checkpoints.db'}"
        work(url, checkpoints)
        yield Worked(ForkedCommand(url), ("--checkpoints", checkpoints), KEPT_S if settings else None)


def test_a_groups_lag_is_told_in_records_and_in_time(worked: Worked) -> None:
    (row,) = worked.json("groups", "list")
    assert (row["group"], row["members"], row["lag"]) == (GROUP, 0, 3)
    described = worked.well("groups", "describe", GROUP)
    assert f"{GROUP}: empty, 0 members, lag 3\n" in described.out
    (partition,) = worked.json("groups", "describe", GROUP)["partitions"]
    assert partition["end"] - partition["committed"] == 3
    (lag,) = worked.json("lag", "--for", "0s")
    assert (lag["lag"], lag["is_counted"], lag["lost"]) == (3, True, 0)
    assert lag["lag_s"] > 0


def test_the_time_until_waiting_records_are_lost_is_told_where_they_are_deleted(worked: Worked) -> None:
    (lag,) = worked.json("lag", "--for", "0s")
    if worked.kept_s is None:
        assert lag["time_to_loss_s"] is None
        return
    assert 0 < lag["time_to_loss_s"] <= worked.kept_s
    failed = worked.run("lag", "--for", "0s", "--fail-if-loss-within", "2d", *worked.store)
    assert failed.code == 1
    assert f"{GROUP} will lose records of {TOPIC} in " in failed.err


def test_topics_are_counted(worked: Worked) -> None:
    described = worked.run.well("topics", "describe", TOPIC, "--json").json
    assert described["partitions"][0]["records"] == 8


def test_a_letter_names_the_offset_of_its_record(worked: Worked) -> None:
    (letter,) = worked.run.well("dlq", "list", LETTERS, "--json").json
    first = worked.run.well("topics", "describe", TOPIC, "--json").json["partitions"][0]["start"]
    assert letter["record"]["offset"] == first + 2


def test_a_group_is_moved_by_a_number_of_records(worked: Worked) -> None:
    planned = worked.json("groups", "reset", GROUP, "--to", "-2")
    (move,) = planned["partitions"]
    assert (planned["executed"], move["by"]) == (False, -2)


def test_metrics_tell_the_lag(worked: Worked) -> None:
    text = worked.well("metrics", "--once").out
    assert 'penstock_reader_lag_records{group="bill",partition="0",topic="orders"} 3.0' in text
    assert 'penstock_reader_lag_seconds{group="bill",partition="0",topic="orders"}' in text
