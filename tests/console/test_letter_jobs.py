"""What is done with many dead letters at once: by one console at a time, whichever processes there are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.console import letters as letters_module
from penstock.console.service import Service
from penstock.console.views import Person
from penstock.dead_letters import open_dead_letters, redrive
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.errors import ConfigError, RedriveRunningError, UnknownTopicError
from penstock.model import DeadLetterFilter, LetterState
from tests.console.conftest import SELDOM_S
from tests.console.letters_of_tests import letter, put_letters
from tests.servers import Penstock

BEN = Person("ben", "10.0.0.9")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/letters.db"


@pytest.fixture
def consoles(server: Penstock, tmp_path: Path, spec: str) -> Iterator[tuple[Service, Service]]:
    """Two that know nothing of each other: what keeps them apart must be what keeps processes apart."""
    url = f"kafka://{server.bootstrap}"
    with (
        Service(url, state=tmp_path / "one", dead_letters=[spec], every_s=SELDOM_S) as one,
        Service(url, state=tmp_path / "other", dead_letters=[spec], every_s=SELDOM_S) as other,
    ):
        yield one, other


@pytest.mark.parametrize("is_topic", [False, True], ids=["sqlite", "topic"])
def test_of_two_consoles_that_redrive_at_once_the_second_is_told_who_does(
    consoles: tuple[Service, Service],
    ann: Person,
    stream: penstock.Connection,
    spec: str,
    topic: str,
    is_topic: bool,
) -> None:
    place = f"{topic}.dlq" if is_topic else spec
    with contextlib.closing(open_dead_letters(place, stream)) as letters:
        letters.put([letter(topic, number) for number in range(20)])
        for console in consoles:
            console.look_now()
        one, other = consoles
        job = one.redrive(ann, place, DeadLetterFilter(), rate_per_s=0.01)
        with pytest.raises(
            RedriveRunningError, match=r"already being redriven by ann \(127\.0\.0\.1\) in the console on"
        ):
            other.redrive(BEN, place, DeadLetterFilter())
        assert other.jobs() == []
        assert other.audit(1)[0].outcome == "failed"
        if not is_topic:  # of a topic, it would be watched for a while first
            with pytest.raises(RedriveRunningError, match="by ann"):
                redrive(letters, stream, DeadLetterFilter())
        one.cancel(ann, job.id)
        assert job.wait(30)
        again = other.redrive(BEN, place, DeadLetterFilter())
        assert again.wait(60)
        assert again.report.redriven + job.report.redriven == 20
        assert len(list(stream.read(topic))) == 20, "nothing was sent twice"


def test_a_redrive_that_is_refused_holds_nothing(
    consoles: tuple[Service, Service], ann: Person, spec: str, topic: str
) -> None:
    put_letters(spec, topic, 3)
    one, other = consoles
    with pytest.raises(UnknownTopicError):
        one.redrive(ann, spec, DeadLetterFilter(), to=f"{topic}-nowhere")
    job = other.redrive(BEN, spec, DeadLetterFilter())
    assert job.wait(30)
    assert job.report.redriven == 3


def test_all_that_match_are_discarded_however_many_and_the_audit_says_how_many(
    consoles: tuple[Service, Service], ann: Person, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_letters(spec, "orders", 50)
    monkeypatch.setattr(letters_module, "MOST_ROWS", 7)
    console, _ = consoles
    with pytest.raises(ConfigError, match="give a reason"):
        console.discard_matching(ann, spec, DeadLetterFilter(), " ")
    with pytest.raises(ConfigError, match="are settled"):
        console.discard_matching(ann, spec, DeadLetterFilter(states=frozenset({LetterState.REDRIVEN})), "old")
    job = console.discard_matching(ann, spec, DeadLetterFilter(error_kind="ValueError"), "test data")
    assert job.wait(30)
    assert (job.kind, job.done, job.total, job.error) == ("discard", 33, 33, None)
    line = console.audit(1)[0]
    assert (line.action, line.outcome, line.text) == ("discard_matching", "done", "33 of 33 discarded")
    assert line.parameters["reason"] == "test data"
    assert console.count_letters(spec, DeadLetterFilter()) == 17


def test_a_discarding_is_cancelled_and_nothing_else_begins_at_its_place(
    consoles: tuple[Service, Service], ann: Person, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_letters(spec, "orders", 50)
    monkeypatch.setattr(letters_module, "MOST_ROWS", 1)
    console, _ = consoles
    refused: list[str] = []

    def begin_another(self: object, ids: object) -> int:
        with pytest.raises(RedriveRunningError, match=r"ann .* is discarding letters of .* 0 of 50 discarded") as error:
            console.redrive(BEN, spec, DeadLetterFilter())
        refused.append(str(error.value))
        console.cancel(BEN, console.jobs()[0].id)
        return 1

    monkeypatch.setattr(SqliteDeadLetters, "discard", begin_another)
    job = console.discard_matching(ann, spec, DeadLetterFilter(), "test data")
    assert job.wait(30)
    assert len(refused) == 1
    assert job.outcome() == "1 of 50 discarded, cancelled"
