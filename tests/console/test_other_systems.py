"""The console's service on systems other than Kafka: what their pointers do not tell is unknown, and not wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.console.service import Service
from penstock.console.views import MessageQuery
from penstock.errors import ConfigError, OffsetOutOfRangeError, StreamError
from penstock.model import DeadLetterFilter
from tests.clients.worked_stream import GROUP, LETTERS, READ, TOPIC, WAITING, send, work
from tests.console.conftest import SELDOM_S
from tests.sampling import is_every_room
from tests.systems import every_system as systems

SYSTEMS = {
    systems.redis: re.compile(r"\d{13}-\d+"),
    systems.files: re.compile(r"0/\d+"),
    systems.pulsar: re.compile(r"\d+:\d+:-1:\d+"),
    systems.kinesis: re.compile(r"\d{56}"),
}
"""With the form of their pointers. The others count their records."""
VALUES = [value.decode() for value in (*READ, *WAITING)]


@pytest.fixture(scope="module", params=[systems.redis, systems.files] if is_every_room() else SYSTEMS)
def console(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, re.Pattern[str]]]:
    folder: Path = tmp_path_factory.mktemp("system")
    with request.param(folder) as url:
        checkpoints = None if request.param in (systems.redis, systems.files) else f"sqlite:{folder / 'checkpoints.db'}"
        work(url, checkpoints)
        with Service(url, state=folder / "state", checkpoints=checkpoints, every_s=SELDOM_S) as service:
            service.look_now()
            yield service, SYSTEMS[request.param]


Console = tuple[Service, re.Pattern[str]]


def test_the_newest_messages_are_found_though_pointers_do_not_count_them(console: Console) -> None:
    service, form = console
    page = service.messages(MessageQuery(TOPIC, "latest-3", limit=3))
    assert [row.value.text for row in page.rows] == VALUES[-3:]
    assert all(form.fullmatch(service.pointer_text(row.pointer)) for row in page.rows)
    older = service.messages(MessageQuery(TOPIC, limit=3, cursor=page.before))
    assert [row.value.text for row in older.rows] == VALUES[-6:-3]
    everything = service.messages(MessageQuery(TOPIC, "latest-100"))
    assert [row.value.text for row in everything.rows] == VALUES
    assert (everything.before, everything.cursor) == (None, None)


def test_messages_start_at_a_pointer_in_the_systems_own_form(console: Console) -> None:
    service, _ = console
    rows = service.messages(MessageQuery(TOPIC, "earliest")).rows
    at = service.pointer_text(rows[4].pointer)
    found = service.messages(MessageQuery(TOPIC, f"offset:{at}")).rows
    assert [row.value.text for row in found] == VALUES[4:]
    assert service.parse_pointer(at) == rows[4].pointer
    with pytest.raises(ConfigError):
        service.messages(MessageQuery(TOPIC, "offset:nowhere"))


def test_a_message_has_neighbours(console: Console) -> None:
    service, form = console
    rows = service.messages(MessageQuery(TOPIC, "earliest")).rows
    middle = rows[2].pointer
    assert service.message(TOPIC, 0, middle).row.value.text == "bad"
    assert service.next_to(TOPIC, 0, middle, "older") == rows[1].pointer
    assert service.next_to(TOPIC, 0, middle, "newer") == rows[3].pointer
    assert service.next_to(TOPIC, 0, rows[0].pointer, "older") is None
    assert service.next_to(TOPIC, 0, rows[-1].pointer, "newer") is None
    with pytest.raises((StreamError, OffsetOutOfRangeError)) as told:
        service.message(TOPIC, 0, rows[-1].pointer + 1)
    assert form.search(str(told.value))
    if not form.fullmatch("1" * 56):
        assert not re.search(r"\d{17,}", str(told.value))


def test_a_group_is_behind_by_an_unknown_number_of_records(console: Console) -> None:
    service, _ = console
    facts = service.group(GROUP).facts
    assert facts.is_behind
    assert facts.lag is None
    assert facts.lag_s is not None
    assert not service.snapshot().is_counted
    assert not service.topic(TOPIC).has_settings


def test_a_reset_is_planned_without_a_number_of_records(console: Console) -> None:
    service, form = console
    (move,) = service.plan_reset(GROUP, "earliest")
    assert move.is_change
    assert move.by is None
    rows = service.messages(MessageQuery(TOPIC, "earliest")).rows
    (move,) = service.plan_reset(GROUP, f"offset:{service.pointer_text(rows[1].pointer)}")
    assert form.fullmatch(service.pointer_text(move.to))
    assert move.to == rows[1].pointer
    with pytest.raises(ConfigError, match="does not count"):
        service.plan_reset(GROUP, "-2")


def test_a_consumer_has_finished_what_its_checkpoint_says(console: Console) -> None:
    service, _ = console
    (facts,) = service.consumers()
    assert (facts.group, facts.in_flight, facts.delivered) == (GROUP, 0, 4)
    (partition,) = service.consumer(GROUP).partitions
    assert (partition.in_flight, partition.finished_ahead) == (0, 0)


def test_a_letter_has_the_pointer_of_its_record_in_the_systems_own_form(console: Console) -> None:
    service, form = console
    (store,) = service.dead_letter_stores()
    assert (store.spec, store.waiting) == (LETTERS, 1)
    (row,) = service.letters(LETTERS, DeadLetterFilter()).rows
    assert form.fullmatch(row.pointer_text)
    assert service.letter(LETTERS, row.id).row.pointer_text == row.pointer_text


def test_new_messages_are_followed(console: Console) -> None:
    service, _ = console
    with service.tail(MessageQuery(TOPIC, "latest")) as tail:
        send(service.url, b"bad")  # the last test: others count the records
        assert [row.value.text for row in tail.poll(30.0)] == ["bad"]
        assert tail.dropped == 0
