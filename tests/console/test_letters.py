"""Dead letters in the console: pages, what they have in common and not, redriving and discarding."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import penstock
from penstock.console import letters as letters_module
from penstock.console.service import Service
from penstock.console.views import Person
from penstock.databases.sqlite import SqliteDatabase
from penstock.dead_letters import open_dead_letters
from penstock.dead_letters.rows import TABLE
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.errors import ConfigError, RedriveRunningError, StoreUnavailableError, UnknownTopicError
from penstock.model import DeadLetter, DeadLetterFilter, LetterState
from tests.clients.names import fresh
from tests.console.conftest import SELDOM_S
from tests.console.letters_of_tests import letter, put_letters
from tests.servers import Penstock

BEN = Person("ben", "10.0.0.9")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/letters.db"


@pytest.fixture
def console(server: Penstock, tmp_path: Path, spec: str) -> Iterator[Service]:
    with Service(
        f"kafka://{server.bootstrap}",
        state=tmp_path / "state",
        dead_letters=[spec, other_way(spec)],
        every_s=SELDOM_S,
    ) as service:
        yield service


def other_way(spec: str) -> str:
    """Another way to write the same place."""
    return spec.replace("sqlite:", "sqlite://")


def test_letters_are_paged_and_filtered(console: Service, spec: str) -> None:
    console.look_now()  # or the first look might count a file that is being filled, and not again for a while
    put_letters(spec, "orders", 25)
    page = console.letters(spec, DeadLetterFilter(), limit=10)
    found = [row.pointer for row in page.rows]
    while page.after is not None:
        page = console.letters(spec, DeadLetterFilter(), limit=10, after=page.after)
        found += [row.pointer for row in page.rows]
    assert found == list(range(25))
    keyed = console.letters(spec, DeadLetterFilter(error_kind="KeyError")).rows
    assert [row.pointer for row in keyed] == list(range(0, 25, 3))
    assert (keyed[0].key.text, keyed[0].value.text) == ("k0", '{"n":0}')
    errors = console.letter_errors(spec)
    assert errors.counts == (("ValueError", 16), ("KeyError", 9))
    assert errors.is_complete
    assert console.count_letters(spec, DeadLetterFilter(error_kind="KeyError")) == 9
    assert console.look_now().letters[spec].waiting == 25
    assert {(place.spec, place.waiting) for place in console.dead_letter_stores()} >= {
        (spec, 25),
        (other_way(spec), 25),
    }


def test_one_letter_is_shown_whole_and_two_are_compared(console: Service, spec: str) -> None:
    with_name = letter("orders", 1, customer={"name": "Ann", "zip": None}, tags=[1, 2])
    without = letter("orders", 2, "KeyError", customer={"name": "Ben"}, tags=[1])
    place = open_dead_letters(spec)
    place.put([with_name, without])
    place.close()
    detail = console.letter(spec, with_name.id)
    assert detail.row.value.text.startswith('{\n  "n": 1,')
    assert detail.traceback == "Traceback ..."
    assert [(name, shown.text) for name, shown in detail.headers] == [("h", "x")]
    found = {each.path: (each.left, each.right) for each in console.compare_letters(spec, with_name.id, without.id)}
    assert found["error"] == ("ValueError: bad 1", "KeyError: bad 2")
    assert found["value.customer.name"] == ('"Ann"', '"Ben"')
    assert found["value.customer.zip"] == ("null", None)
    assert found["value.tags[1]"] == ("2", None)
    assert "group" not in found
    assert console.compare_letters(spec, with_name.id, with_name.id) == []
    with pytest.raises(ConfigError, match="no dead letter"):
        console.letter(spec, "nobody")


def test_letters_are_redriven_and_the_audit_says_how_many(
    console: Service, ann: Person, stream: penstock.Connection, spec: str, topic: str
) -> None:
    put_letters(spec, topic, 9)
    job = console.redrive(ann, spec, DeadLetterFilter(error_kind="KeyError"))
    assert job.wait(30)
    assert (job.total, job.report.redriven, job.error, job.is_done) == (3, 3, None, True)
    assert [record.value for record in stream.read(topic)] == [b'{"n":0}', b'{"n":3}', b'{"n":6}']
    line = console.audit(1)[0]
    assert (line.action, line.who, line.outcome, line.text) == ("redrive", "ann", "done", "3 of 3 redriven")
    limited = console.redrive(ann, spec, DeadLetterFilter(), limit=2)
    assert limited.wait(30)
    assert limited.report.redriven == 2
    assert [each.id for each in console.jobs()] == [limited.id, job.id]
    assert console.letter_errors(spec).counts == (("ValueError", 4),)


def test_of_two_who_redrive_at_once_the_second_is_told_who_and_how_far(
    console: Service, ann: Person, spec: str, topic: str
) -> None:
    put_letters(spec, topic, 50)
    job = console.redrive(ann, spec, DeadLetterFilter(), rate_per_s=0.01)
    with pytest.raises(RedriveRunningError, match=r"ann \(127.0.0.1\) is redriving .* redriven"):
        console.redrive(BEN, spec, DeadLetterFilter())
    with pytest.raises(RedriveRunningError):  # however the place is written
        console.redrive(BEN, other_way(spec), DeadLetterFilter())
    console.cancel(BEN, job.id)
    assert job.wait(30)
    assert job.is_cancelled
    assert job.report.interrupted
    assert job.error is None
    again = console.redrive(BEN, spec, DeadLetterFilter())
    assert again.wait(60)
    assert again.report.redriven + job.report.redriven == 50
    assert [(line.action, line.who, line.outcome) for line in reversed(console.audit())] == [
        ("redrive", "ann", "done"),
        ("redrive", "ben", "failed"),
        ("redrive", "ben", "failed"),
        ("cancel", "ben", "done"),
        ("redrive", "ben", "done"),
    ]


def test_a_console_that_closes_ends_its_redrives_in_good_order(
    server: Penstock, tmp_path: Path, ann: Person, spec: str, topic: str
) -> None:
    put_letters(spec, topic, 20)
    with Service(f"kafka://{server.bootstrap}", state=tmp_path / "s", dead_letters=[spec], every_s=SELDOM_S) as service:
        job = service.redrive(ann, spec, DeadLetterFilter(), rate_per_s=0.01)
    assert job.is_done
    place = open_dead_letters(spec)
    try:
        assert place.count(DeadLetterFilter(states=frozenset({LetterState.TAKEN}))) == 0
        assert place.count(DeadLetterFilter()) == 20 - job.report.redriven
    finally:
        place.close()


def test_a_redrive_that_fails_says_why(console: Service, ann: Person, spec: str) -> None:
    put_letters(spec, fresh("gone"), 3)
    job = console.redrive(ann, spec, DeadLetterFilter())
    assert job.wait(60)
    assert job.error is not None
    assert job.report.redriven == 0
    assert console.audit(1)[0].outcome == "failed"
    assert console.count_letters(spec, DeadLetterFilter()) == 3


def test_a_redrive_that_makes_no_sense_is_refused_at_once(console: Service, ann: Person, spec: str) -> None:
    put_letters(spec, "orders", 3)
    for rate_per_s, limit in ((0.0, None), (-1.0, None), (float("nan"), None), (None, 0)):
        with pytest.raises(ConfigError):
            console.redrive(ann, spec, DeadLetterFilter(), rate_per_s=rate_per_s, limit=limit)
    with pytest.raises(ConfigError, match="letters that wait"):
        console.redrive(ann, spec, DeadLetterFilter(states=frozenset({LetterState.DISCARDED})))
    with pytest.raises(UnknownTopicError):
        console.redrive(ann, spec, DeadLetterFilter(), to=fresh())
    with pytest.raises(ConfigError, match="no longer exists"):
        console.cancel(ann, "nothing")
    assert console.jobs() == []


def test_letters_are_discarded_with_a_reason(console: Service, ann: Person, spec: str) -> None:
    letters = put_letters(spec, "orders", 4)
    for reason in ("", "  "):
        with pytest.raises(ConfigError, match="give a reason"):
            console.discard(ann, spec, [letters[0].id], reason)
    assert console.discard(ann, spec, [letters[0].id, letters[1].id], "test data") == 2
    assert console.discard(ann, spec, [letters[0].id], "again") == 0
    assert console.audit(2)[1].parameters["reason"] == "test data"
    assert [row.pointer for row in console.letters(spec, DeadLetterFilter()).rows] == [2, 3]
    with pytest.raises(ConfigError):
        console.discard(ann, spec, [], "nothing")


def test_letters_in_a_topic_are_looked_at_without_making_it(
    console: Service, ann: Person, stream: penstock.Connection, topic: str
) -> None:
    name = f"{topic}.dlq"
    with pytest.raises(ConfigError, match="not a dead-letter store"):
        console.letters(name, DeadLetterFilter())
    place = open_dead_letters(name, stream)
    place.put([letter(topic, number) for number in range(5)])
    place.close()
    assert console.look_now().letters[name].waiting == 5
    assert len(console.letters(name, DeadLetterFilter()).rows) == 5
    job = console.redrive(ann, name, DeadLetterFilter())
    assert job.wait(30)
    assert job.report.redriven == 5
    assert console.letters(name, DeadLetterFilter()).rows == ()


def test_who_asks_while_a_topic_of_letters_is_first_read_is_told_so(
    console: Service, stream: penstock.Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{topic}.dlq"
    place = open_dead_letters(name, stream)
    place.put([letter(topic, number) for number in range(5)])
    place.close()
    console.look_now()
    is_read, browse = threading.Event(), StreamDeadLetters.browse

    def browse_slowly(
        self: StreamDeadLetters, which: DeadLetterFilter, limit: int = 100, after: str | None = None
    ) -> Sequence[DeadLetter]:
        assert is_read.wait(30)
        return browse(self, which, limit, after)

    monkeypatch.setattr(StreamDeadLetters, "browse", browse_slowly)
    monkeypatch.setattr(letters_module, "FIRST_READ_S", 0.01)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="try again in a moment"):
            console.letters(name, DeadLetterFilter())
    is_read.set()
    monkeypatch.setattr(letters_module, "FIRST_READ_S", 60.0)
    assert len(console.letters(name, DeadLetterFilter()).rows) == 5


def test_counting_kinds_of_error_stops_at_its_bounds(
    console: Service, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_letters(spec, "orders", 40)
    monkeypatch.setattr(letters_module, "COUNTED_LETTERS", 10)
    monkeypatch.setattr(letters_module, "_COUNTED_AT_ONCE", 5)
    errors = console.letter_errors(spec)
    assert not errors.is_complete
    assert errors.counted == 10


def test_neither_a_page_nor_taking_a_few_walks_through_all_letters(spec: str) -> None:
    """What is quick with a million letters is what SQLite does by an index."""
    put_letters(spec, "orders", 10)
    place = open_dead_letters(spec)
    asked: list[str] = []
    try:
        database: SqliteDatabase[sqlite3.Connection] = place._database  # type: ignore[attr-defined]
        for connection in (database._reader, database._writer):
            connection.set_trace_callback(asked.append)
        last = letter("orders", 5).id
        place.browse(DeadLetterFilter(), 100, last)
        place.take([last], "taker")
        place.settle([last], "taker", redriven=True)
        for connection in (database._reader, database._writer):
            connection.set_trace_callback(None)
        about_letters = [each for each in asked if TABLE in each]
        assert len(about_letters) >= 4
        for statement in about_letters:
            first = database.read(f"EXPLAIN QUERY PLAN {statement}")[0][3]
            assert "(id=?)" in first or "place>?" in first, f"{first}: {statement}"
    finally:
        place.close()
