"""The console's service on systems other than Kafka whose pointers count records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from penstock.console.service import Service
from penstock.console.views import MessageQuery
from penstock.model import DeadLetterFilter
from tests.clients.worked_stream import GROUP, LETTERS, READ, TOPIC, WAITING, send, work
from tests.console.conftest import SELDOM_S
from tests.systems import every_system as systems

KEPT_S: Final = 86_400
SYSTEMS: Final = {
    systems.nats: f"max_age_s={KEPT_S}",
    systems.managed_rabbitmq_stream: f"max_age_s={KEPT_S}",
    systems.postgres: "",
}
"""With the settings that say how long new topics keep their records; tables keep them for ever."""
VALUES = [value.decode() for value in (*READ, *WAITING)]


@pytest.fixture(scope="module", params=SYSTEMS)
def console(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, bool]]:
    """The service, and whether the system deletes old records."""
    folder: Path = tmp_path_factory.mktemp("system")
    with request.param(folder) as url:
        settings = SYSTEMS[request.param]
        if settings:
            url = f"{url}{'&' if '?' in url else '?'}{settings}"
        checkpoints = f"sqlite:{folder / 'checkpoints.db'}"
        work(url, checkpoints)
        with Service(url, state=folder / "state", checkpoints=checkpoints, every_s=SELDOM_S) as service:
            service.look_now()
            yield service, bool(settings)


Console = tuple[Service, bool]


def test_the_newest_messages_are_shown(console: Console) -> None:
    service, _ = console
    page = service.messages(MessageQuery(TOPIC, "latest-3", limit=3))
    assert [row.value.text for row in page.rows] == VALUES[-3:]
    newest = page.rows[-1].pointer
    assert [row.pointer for row in page.rows] == [newest - 2, newest - 1, newest]
    assert service.pointer_text(newest) == str(newest)
    found = service.messages(MessageQuery(TOPIC, f"offset:{newest - 1}")).rows
    assert [row.value.text for row in found] == VALUES[-2:]


def test_a_group_is_behind_by_a_number_of_records(console: Console) -> None:
    service, is_trimmed = console
    facts = service.group(GROUP).facts
    assert (facts.is_behind, facts.lag) == (True, 3)
    assert facts.lag_s is not None
    assert (facts.time_to_loss_s is not None) == is_trimmed
    assert facts.time_to_loss_s is None or 0 < facts.time_to_loss_s <= KEPT_S
    assert service.snapshot().is_counted


def test_a_reset_is_planned_with_a_number_of_records(console: Console) -> None:
    service, _ = console
    (move,) = service.plan_reset(GROUP, "earliest")
    assert move.by == -len(READ)
    (move,) = service.plan_reset(GROUP, "-2")
    assert move.by == -2


def test_consumers_and_letters_are_shown(console: Console) -> None:
    service, _ = console
    (facts,) = service.consumers()
    assert (facts.group, facts.in_flight, facts.delivered) == (GROUP, 0, 4)
    (row,) = service.letters(LETTERS, DeadLetterFilter()).rows
    first = service.messages(MessageQuery(TOPIC, "earliest")).rows[0].pointer
    assert row.pointer_text == str(first + READ.index(b"bad"))


def test_new_messages_are_followed(console: Console) -> None:
    service, _ = console
    with service.tail(MessageQuery(TOPIC, "latest")) as tail:
        send(service.url, b"new")  # the last test: others count the records
        assert [row.value.text for row in tail.poll(30.0)] == ["new"]
