"""Read-only means that nothing is changed, whichever way it is tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.console.service import Service
from penstock.console.views import Person
from penstock.errors import ReadOnlyError
from penstock.model import DeadLetterFilter
from penstock.observe.alerts import Rule, RuleKind
from tests.console.conftest import SELDOM_S
from tests.console.letters_of_tests import letter, put_letters
from tests.servers import Penstock

ANN = Person("ann", "127.0.0.1")
CHANGES: dict[str, Callable[[Service, str, str], object]] = {
    "produce": lambda service, topic, spec: service.produce(ANN, topic, "k", "v"),
    "replay": lambda service, topic, spec: service.replay(ANN, topic, 0, 0),
    "create_topic": lambda service, topic, spec: service.create_topic(ANN, f"{topic}-more", 1),
    "alter_topic": lambda service, topic, spec: service.alter_topic(ANN, topic, {"retention.ms": "1"}, 9),
    "delete_topic": lambda service, topic, spec: service.delete_topic(ANN, topic),
    "reset": lambda service, topic, spec: service.reset(ANN, f"{topic}-group", "latest", [topic]),
    "delete_group": lambda service, topic, spec: service.delete_group(ANN, f"{topic}-group"),
    "redrive": lambda service, topic, spec: service.redrive(ANN, spec, DeadLetterFilter()),
    "cancel": lambda service, topic, spec: service.cancel(ANN, "job"),
    "discard": lambda service, topic, spec: service.discard(ANN, spec, [letter(topic, 0).id], "not needed"),
    "discard_matching": lambda service, topic, spec: service.discard_matching(
        ANN, spec, DeadLetterFilter(), "not needed"
    ),
    "add_rule": lambda service, topic, spec: service.add_rule(ANN, Rule(name="new", kind=RuleKind.LAG, threshold=5)),
    "remove_rule": lambda service, topic, spec: service.remove_rule(ANN, "stalled"),
    "mute": lambda service, topic, spec: service.mute(ANN, "stalled", 9_999_999_999_999),
    "test_notifier": lambda service, topic, spec: service.test_notifier(ANN, "log"),
}


def changing_methods() -> list[str]:
    """Every public method of the service that takes the person who acts."""
    return [
        name
        for name, method in inspect.getmembers(Service, inspect.isfunction)
        if not name.startswith("_") and "by" in inspect.signature(method).parameters
    ]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:{tmp_path_factory.mktemp('letters')}/letters.db"


@pytest.fixture(scope="module")
def looking(server: Penstock, tmp_path_factory: pytest.TempPathFactory, spec: str) -> Iterator[Service]:
    state = tmp_path_factory.mktemp("read-only")
    with Service(
        f"kafka://{server.bootstrap}", state=state, read_only=True, dead_letters=[spec], every_s=SELDOM_S
    ) as service:
        yield service


def test_every_method_that_changes_something_is_tried_here() -> None:
    assert sorted(CHANGES) == sorted(changing_methods())


def test_methods_that_take_no_person_change_nothing_by_their_names() -> None:
    readers = {name for name, _ in inspect.getmembers(Service, inspect.isfunction) if not name.startswith("_")}
    assert readers - set(CHANGES) == {
        *("alerting_problem", "alerts", "audit", "check_expression", "close", "compare_letters", "consumer"),
        *(
            "consumers",
            "count_letters",
            "group",
            "history_of",
            "jobs",
            "letter",
            "letter_errors",
            "dead_letter_stores",
            "letter_record",
            "letters",
        ),
        *("look_now", "message", "messages", "mutes", "notifiers", "outage", "pipeline", "pipelines", "plan_reset"),
        *("program", "programs"),
        *("next_to", "open_query", "parse_pointer", "pointer_text", "record"),
        *("rules", "series", "snapshot", "start", "tail", "topic"),
    }


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_is_refused_and_nothing_happens(
    name: str, looking: Service, stream: penstock.Connection, topic: str, spec: str
) -> None:
    stream.send(topic, "v", partition=0)
    stream.flush(30)
    put_letters(spec, topic, 2)
    before = what_is_so(looking, stream, topic, spec)
    with pytest.raises(ReadOnlyError, match="read-only"):
        CHANGES[name](looking, topic, spec)
    assert what_is_so(looking, stream, topic, spec) == before
    assert looking.audit() == []
    assert looking.jobs() == []


def what_is_so(service: Service, stream: penstock.Connection, topic: str, spec: str) -> list[object]:
    administration = stream.admin()
    letters = service.letters(spec, DeadLetterFilter(topic=topic, states=frozenset())).rows
    return [
        [each for each in stream.topics() if each.startswith(topic)],
        administration.ends(topic, administration.partitions_of(topic)),
        [(each.name, each.value) for each in administration.config(topic)],
        [(each.id, each.state) for each in letters],
        service.rules(),
        service.mutes(),
        sorted(service.look_now().groups),
    ]


def test_a_reset_can_be_planned(looking: Service, stream: penstock.Connection, topic: str) -> None:
    stream.send(topic, "v", partition=0)
    stream.flush(30)
    moves = looking.plan_reset("a-group-of-nobody", "latest", [topic])
    assert [(move.partition, move.to) for move in moves] == [(0, 1), (1, 0), (2, 0)]


def test_it_cannot_be_talked_out_of_it(looking: Service) -> None:
    with pytest.raises(AttributeError):
        looking.read_only = False  # type: ignore[misc]


def test_places_that_nobody_named_cannot_be_opened(looking: Service, tmp_path: Path) -> None:
    from penstock.errors import ConfigError

    for place in (f"sqlite:{tmp_path}/new.db", f"file:{tmp_path}", "file:/etc/passwd", "postgresql://x@127.0.0.1:1/x"):
        with pytest.raises(ConfigError, match="not a dead-letter store"):
            looking.letters(place, DeadLetterFilter())
    assert list(tmp_path.iterdir()) == []
