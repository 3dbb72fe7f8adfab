"""A redrive that is killed anywhere is finished by the next one: nothing is lost, and what is sent twice has one id.

Each storage of letters is used with the embedded log. A child process redrives, and is killed before or after one of
its calls; which calls there are is found by letting one run through.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.abc import DeadLetters
from penstock.dead_letters import open_dead_letters, redrive, redrive_of
from penstock.model import DeadLetterFilter, LetterState, NewRecord, Record
from tests.clients.names import fresh
from tests.dead_letters.hasty_clock import HastyClock
from tests.dead_letters.killed_redrive import PAGE, URL_VARIABLE, run_redrive
from tests.dead_letters.letters import given_up
from tests.postgres import shared_postgres
from tests.seeds import seed_of
from tests.servers import Penstock

LETTERS: Final = 6
NEVER: Final = 10**9
EVERYTHING: Final = DeadLetterFilter(states=frozenset())
Spec = Callable[[Path, str], str]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Connection]:
    with Penstock(tmp_path_factory.mktemp("redrive")) as broker, pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL_VARIABLE, f"kafka://{broker.bootstrap}")
        with penstock.connect(f"kafka://{broker.bootstrap}") as connection:
            yield connection


def in_sqlite(folder: Path, topic: str) -> str:
    return f"sqlite:{folder}/letters.db"


def in_a_file(folder: Path, topic: str) -> str:
    return f"file:{folder}/letters.jsonl"


def on_the_stream(folder: Path, topic: str) -> str:
    return f"{topic}.dlq"


def in_postgres(folder: Path, topic: str) -> str:
    return shared_postgres().fresh_database()


def put_letters(streams: penstock.Connection, spec: str, topic: str) -> list[Record]:
    """Records that are in the topic, given up. Gives the records."""
    streams.create_topic(topic, 2)
    stream = streams.open_topic(topic)
    for number in range(LETTERS):
        new = NewRecord(topic, b"\xff%d" % number, b"key", (("h", None),), partition=number % 2)
        stream.append([new])[0].result(30)
    records = [record for partition in (0, 1) for record in stream.read(partition, 0, LETTERS, 10)]
    letters = open_dead_letters(spec, streams)
    letters.put([given_up(record) for record in records])
    letters.close()
    stream.close()
    return records


def check_finished(
    streams: penstock.Connection, letters: DeadLetters, topic: str, originals: list[Record]
) -> Counter[str]:
    """Everything was redriven, once or more, under one id. Gives how often each id was appended."""
    stored = letters.browse(EVERYTHING)
    assert [(letter.state, letter.redrives) for letter in stored] == [(LetterState.REDRIVEN, 1)] * LETTERS
    stream = streams.open_topic(topic)
    appended: Counter[str] = Counter()
    by_letter = {letter.id: letter.record for letter in stored}
    for partition in (0, 1):
        for record in stream.read(partition, LETTERS // 2, 10_000, 10):
            found = redrive_of(record)
            assert found is not None
            assert found.id == f"{found.letter_id}.1"
            original = by_letter[found.letter_id]
            assert (record.key, record.value, record.partition) == (original.key, original.value, original.partition)
            assert record.headers[: len(original.headers)] == original.headers
            appended[found.letter_id] += 1
    stream.close()
    assert set(appended) == {letter.id for letter in map(given_up, originals)}, "each letter's record was sent again"
    return appended


def kill_and_finish(streams: penstock.Connection, spec_of: Spec, folder: Path, at: str, nth: int, after: bool) -> None:
    topic = fresh()
    folder = folder / topic
    folder.mkdir()
    spec = spec_of(folder, topic)
    originals = put_letters(streams, spec, topic)
    run_redrive(spec, at, nth, after).wait_until_killed()
    letters = open_dead_letters(spec, streams)
    redrive(letters, streams, DeadLetterFilter(), clock=HastyClock())
    appended = check_finished(streams, letters, topic, originals)
    assert max(appended.values()) <= 2, "one kill repeats no more than what was under way"
    assert sum(appended.values()) <= LETTERS + PAGE
    letters.close()


def steps_of(streams: penstock.Connection, spec_of: Spec, folder: Path) -> dict[str, int]:
    """The calls of a redrive that nobody kills."""
    topic = fresh()
    spec = spec_of(folder, topic)
    originals = put_letters(streams, spec, topic)
    redriven, steps = run_redrive(spec, "append", NEVER, False).wait_until_done()
    assert redriven == LETTERS
    letters = open_dead_letters(spec, streams)
    assert set(check_finished(streams, letters, topic, originals).values()) == {1}
    letters.close()
    return steps


POINTS: Final = (
    ("browse", 3),
    ("take", 1),
    ("take", 2),
    ("append", 1),
    ("append", 4),
    ("acknowledge", 1),
    ("acknowledge", 6),
    ("settle", 1),
    ("settle", 2),
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("at", "nth"), POINTS)
def test_a_redrive_killed_at_any_step_is_finished_by_the_next(
    stream: penstock.Connection, tmp_path: Path, at: str, nth: int, after: bool
) -> None:
    kill_and_finish(stream, in_sqlite, tmp_path, at, nth, after)


@pytest.mark.parametrize(("spec_of", "kills"), [(on_the_stream, 8), (in_a_file, 4), (in_postgres, 4)])
def test_so_it_is_on_every_storage(stream: penstock.Connection, tmp_path: Path, spec_of: Spec, kills: int) -> None:
    steps = steps_of(stream, spec_of, tmp_path)
    points = [(at, nth, after) for at, calls in steps.items() for nth in range(1, calls + 1) for after in (False, True)]
    # How often a topic is read depends on how much of it has come with one fetch.
    points = [point for point in points if point[0] not in ("read", "close")]
    for at, nth, after in random.Random(seed_of()).sample(points, kills):
        print(f"killed {'after' if after else 'before'} {at} {nth}")
        kill_and_finish(stream, spec_of, tmp_path, at, nth, after)


def test_the_points_are_all_that_there_are(stream: penstock.Connection, tmp_path: Path) -> None:
    """Otherwise the list above would leave some out, or name some that are never reached."""
    steps = steps_of(stream, in_sqlite, tmp_path)
    assert steps == {
        "browse": 3,
        "take": 2,
        "partitions": 1,
        "append": LETTERS,
        "acknowledge": LETTERS,
        "settle": 2,
        "close": 1,
    }
