"""`penstock dlq`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.abc import DeadLetters, Outcome
from penstock.dead_letters import open_dead_letters, redrive_of
from penstock.model import DeadLetter, DeadLetterFilter, LetterState, Record
from penstock.queues import open_queue
from tests import moto_server
from tests.cli.forked import ForkedCommand
from tests.cli.running import Command
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.dead_letters.letters import given_up

MANY = 400


@pytest.fixture
def records(stream: penstock.Connection, numbers: str) -> list[Record]:
    """The ten records of a topic."""
    return list(stream.read(numbers))


everywhere = pytest.mark.parametrize("place", ["topic", "file"], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where letters are, as it is written on the command line: in SQLite, unless a test is for `everywhere`."""
    return {
        "topic": f"{fresh()}.dlq",
        "sqlite": f"sqlite:{tmp_path}/letters.db",
        "file": f"file:{tmp_path}/letters.jsonl",
    }[getattr(request, "param", "sqlite")]


@pytest.fixture
def opened(stream: penstock.Connection, place: str) -> Iterator[DeadLetters]:
    letters = open_dead_letters(place, stream)
    yield letters
    letters.close()


@pytest.fixture
def letters(opened: DeadLetters, records: list[Record]) -> list[DeadLetter]:
    """Ten letters: of two groups, with two kinds of errors."""
    made = [
        given_up(
            record,
            group="billing" if record.offset < 5 else "shipping",
            error=f"{'ValueError' if record.offset % 2 else 'TimeoutError'}: order {record.offset}\nis no order",
        )
        for record in records
    ]
    opened.put(made)
    return made


@pytest.fixture
def ids(letters: list[DeadLetter]) -> list[str]:
    return [letter.id for letter in letters]


def shown_ids(run: Command, *arguments: str) -> list[str]:
    return [each["id"] for each in run.well("dlq", "list", *arguments, "--json").json]


@everywhere
def test_letters_are_listed(run: Command, place: str, ids: list[str], numbers: str) -> None:
    lines = run.well("dlq", "list", place).out.splitlines()
    assert lines[0].split() == ["id", "state", "group", "record", "given", "up", "attempts", "redrives", "error"]
    assert [line.split()[0] for line in lines[1:]] == ids
    assert lines[1].split()[1:4] == ["waiting", "billing", f"{numbers}-0:0"]
    assert lines[1].endswith("TimeoutError: order 0"), "the first line of the error"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--group", "billing"], [0, 1, 2, 3, 4]),
        (["--error-kind", "ValueError"], [1, 3, 5, 7, 9]),
        (["--contains", "order 7"], [7]),
        (["--partition", "1"], []),
        (["--topic", "another"], []),
        (["--since", "@1700000001007"], [7, 8, 9]),
        (["--until", "@1700000001002", "--group", "billing"], [0, 1]),
        (["--state", "redriven"], []),
        (["--limit", "3"], [0, 1, 2]),
    ],
)
def test_letters_are_chosen_by_options(
    run: Command, place: str, ids: list[str], options: list[str], expected: list[int]
) -> None:
    assert shown_ids(run, place, *options) == [ids[number] for number in expected]


def test_a_long_list_goes_on_where_it_ended(run: Command, place: str, ids: list[str]) -> None:
    done = run.well("dlq", "list", place, "--limit", "4")
    assert f"Continue with: --after {ids[3]}" in done.err
    assert shown_ids(run, place, "--after", ids[3]) == ids[4:]
    assert "There are more" not in run.well("dlq", "list", place, "--limit", "10").err


def test_a_letter_is_shown_with_everything(run: Command, place: str, letters: list[DeadLetter], numbers: str) -> None:
    shown = run.well("dlq", "show", place, letters[3].id).out
    for text in (
        f"letter     {letters[3].id}",
        "group      billing",
        "handler    bill 1.2.0",
        f"record     {numbers}-0 at offset 3",
        "key        key-3",
        "value      3",
        "error      ValueError: order 3\\nis no order",
        "Traceback (most recent call last):",
    ):
        assert text in shown
    (told,) = run.well("dlq", "show", place, letters[3].id, "--json").json
    assert told["traceback"] == letters[3].traceback
    assert (told["record"]["offset"], told["record"]["key"], told["record"]["value"]) == (3, "key-3", "3")


def test_letters_are_counted(run: Command, place: str, ids: list[str], opened: DeadLetters) -> None:
    assert run.well("dlq", "count", place).out == "10\n"
    assert run.well("dlq", "count", place, "--by", "error-kind", "--group", "billing").table == [
        ["TimeoutError", "3"],
        ["ValueError", "2"],
    ]
    opened.discard(ids[:2])
    told = run.well("dlq", "count", place, "--state", "all", "--by", "state", "--json").json
    assert told == {"count": 10, "by": "state", "counts": {"waiting": 8, "discarded": 2}}


@everywhere
def test_letters_are_redriven(
    run: Command, stream: penstock.Connection, place: str, ids: list[str], numbers: str, opened: DeadLetters
) -> None:
    dry = run.well("dlq", "redrive", place, "--group", "billing", "--dry-run")
    assert "5 letters of 5 would be redriven to their own topics. Nothing was sent." in dry.err
    assert len(list(stream.read(numbers))) == 10

    assert "Redrove 5 letters." in run.well("dlq", "redrive", place, "--group", "billing").err
    sent = list(stream.read(numbers))[10:]
    assert [record.value for record in sent] == [b"0", b"1", b"2", b"3", b"4"]
    redrives = [redrive_of(record) for record in sent]
    assert [each.id for each in redrives if each] == [f"{id}.1" for id in ids[:5]]
    assert shown_ids(run, place) == ids[5:]
    assert shown_ids(run, place, "--state", "redriven") == ids[:5]

    told = run.well("dlq", "redrive", place, ids[7], "--json").json
    assert (told["redriven"], told["failed"], told["interrupted"]) == (1, 0, False)
    again = run("dlq", "redrive", place, ids[7])
    assert (again.code, f"letter {ids[7]} is redriven: only waiting letters" in again.err) == (1, True)
    assert "Redrove 2 letters." in run.well("dlq", "redrive", place, "--limit", "2").err
    assert opened.count(DeadLetterFilter()) == 2


@everywhere
def test_letters_are_redriven_to_a_queue(
    run: Command, place: str, ids: list[str], opened: DeadLetters, topic: str
) -> None:
    url = f"sqs://{moto_server.REGION}/{topic}?endpoint_url={moto_server.shared_endpoint()}"
    with closing(open_queue(f"{url}&create=true")) as queue:
        run.environment = {**os.environ, **run.environment, **moto_server.CREDENTIALS}
        dry = run.well("dlq", "redrive", place, "--to", url, "--dry-run")
        assert f"10 letters of 10 would be redriven to {url}. Nothing was sent." in dry.err
        assert "Redrove 4 letters." in run.well("dlq", "redrive", place, "--to", url, "--limit", "4").err
        received: dict[bytes | None, str] = {}
        until_s = time.monotonic() + 60
        while len(received) < 4 and time.monotonic() < until_s:
            for delivery in queue.receive(10, 1.0):
                redrive = redrive_of(delivery.record)
                received[delivery.record.value] = redrive.id if redrive else ""
                queue.settle(delivery, Outcome.DONE)
    assert received == {b"%d" % number: f"{ids[number]}.1" for number in range(4)}
    assert opened.count(DeadLetterFilter()) == 6


def test_what_is_not_a_queue_or_is_away_is_named_and_the_letters_wait(
    run: Command, place: str, ids: list[str], opened: DeadLetters
) -> None:
    for url, message in (
        ("kafka://127.0.0.1:9092", "is not a URL of a queue"),
        ("memory:jobs", "a queue in memory ends with this command"),
        ("stomp://127.0.0.1:9/jobs", "cannot be reached"),
    ):
        refused = run("dlq", "redrive", place, "--to", url)
        assert (refused.code, message in refused.err) == (1, True), refused.err
    assert opened.count(DeadLetterFilter(states=frozenset({LetterState.WAITING}))) == len(ids)


def test_letters_are_redriven_to_another_topic(
    run: Command, stream: penstock.Connection, place: str, ids: list[str]
) -> None:
    topic = fresh()
    stream.create_topic(topic)
    run.well("dlq", "redrive", place, "--to", topic, "--new-timestamps", "--rate", "1000")
    assert [record.value for record in stream.read(topic)] == [b"%d" % number for number in range(10)]
    refused = run("dlq", "redrive", place, "--to", "no-such-topic")
    assert (refused.code, "there is no topic 'no-such-topic'" in refused.err) == (1, True)


def test_letters_are_discarded(run: Command, place: str, ids: list[str]) -> None:
    nobody = run("dlq", "discard", place, ids[0])
    assert (nobody.code, "pass --yes" in nobody.err) == (2, True)
    assert "Discarded 1 letter." in run.well("dlq", "discard", place, ids[0], "--yes").err
    assert run.well("dlq", "discard", place, "--error-kind", "ValueError", "-y", "--json").json == {"discarded": 5}
    assert shown_ids(run, place) == [ids[number] for number in (2, 4, 6, 8)]
    vague = run("dlq", "discard", place, "--yes")
    assert (vague.code, "by a filter, or --all" in vague.err) == (2, True)
    run.well("dlq", "discard", place, "--all", "--yes")
    assert "No letter is waiting; 10 letters are settled. --state all shows them." in run.well("dlq", "list", place).err


def test_dead_letters_of_the_stream_are_found(run: Command, stream: penstock.Connection, records: list[Record]) -> None:
    topic = f"{fresh()}.dlq"
    letters = open_dead_letters(topic, stream)
    letters.put([given_up(record) for record in records])
    letters.discard([given_up(records[0]).id])
    letters.close()
    (row,) = [row for row in run.well("dlq").table if row[0] == topic]
    assert row == [topic, "9", "0", "0", "1"]
    assert {"letters": topic, "waiting": 9, "taken": 0, "redriven": 0, "discarded": 1} in run.well(
        "dlq", "list", "--json"
    ).json


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["list", "no-such.dlq"], 1, "there is no topic 'no-such.dlq'"),
        (["list", "sqlite:./no-such.db"], 1, "there are no dead letters at no-such.db: it does not exist"),
        (["list", "mongodb://x"], 1, "does not name dead letters: use the name of a topic"),
        (["list", "--group", "billing"], 2, "name the dead letters"),
        (["list", "no-such.dlq", "--since", "42"], 2, "'42' is not a time"),
        (["list", "no-such.dlq", "--since", "soon"], 2, "'soon' is not a position"),
        (["show", "no-such.dlq"], 2, "Missing argument"),
        (["redrive", "no-such.dlq", "--rate", "0"], 2, "--rate"),
    ],
)
def test_mistakes_are_told_with_the_next_step(run: Command, arguments: list[str], code: int, text: str) -> None:
    done = run("dlq", *arguments)
    assert done.code == code
    assert text in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_an_unknown_letter_is_told(run: Command, place: str, ids: list[str]) -> None:
    for verb in ("show", "redrive", "discard"):
        done = run("dlq", verb, place, ids[0], "unknown")
        assert (done.code, f"there is no letter 'unknown' in {place}; to see them" in done.err) == (1, True)


def test_letters_elsewhere_need_no_stream(tmp_path: Path, records: list[Record]) -> None:
    place = f"sqlite:{tmp_path}/letters.db"
    letters = open_dead_letters(place)
    letters.put([given_up(record) for record in records])
    letters.close()
    nowhere = ForkedCommand("kafka://127.0.0.1:1")
    assert nowhere.well("dlq", "count", place).out == "10\n"
    assert nowhere.well("dlq", "discard", place, "--all", "--yes").err == "Discarded 10 letters.\n"


def test_what_is_no_text_does_nothing_to_a_terminal(run: Command, opened: DeadLetters, place: str) -> None:
    record = Record("orders\x1b[31m", 0, 0, b"\x1b[2J", b"\xff\x00", (("\x1b", b"\x07"),), 1_000)
    opened.put([replace(given_up(record), traceback="\x1b[2J", handler="\x1b")])
    done = run.well("dlq", "show", place, given_up(record).id)
    assert not any(ord(char) < 32 and char != "\n" for char in done.out + run.well("dlq", "list", place).out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_redrive_ends_in_good_order_and_can_be_finished(
    run: Command, stream: penstock.Connection, tmp_path: Path, number: signal.Signals
) -> None:
    topic, place = fresh(), f"sqlite:{tmp_path}/letters.db"
    stream.create_topic(topic)
    letters = open_dead_letters(place)
    originals = [Record(topic, 0, offset, b"k", b"%d" % offset) for offset in range(MANY)]
    letters.put([given_up(record) for record in originals])

    process = run.start("dlq", "redrive", place, "--rate", "50")
    eventually("some letters are redriven", redriven_beyond(letters, 20), timeout_s=60)
    os.kill(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number, told
    counts = {state: letters.count(DeadLetterFilter(states=frozenset({state}))) for state in LetterState}
    assert counts[LetterState.TAKEN] == 0, "what was not sent is given back"
    assert counts[LetterState.WAITING] == MANY - counts[LetterState.REDRIVEN] > 0
    if number == signal.SIGINT:
        assert f"Redrove {counts[LetterState.REDRIVEN]} letters." in told
        assert "run it again to continue" in told

    run.well("dlq", "redrive", place)
    sent = [record.value for record in stream.read(topic)]
    assert sent == [record.value for record in originals], "each once, in order"
    letters.close()


def redriven_beyond(letters: DeadLetters, count: int) -> Callable[[], bool]:
    return lambda: letters.count(DeadLetterFilter(states=frozenset({LetterState.REDRIVEN}))) > count
