"""What cannot work with a queue is refused when it is declared, or before anything is received."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.app import App
from penstock.errors import (
    ConfigError,
    GuaranteeError,
    HandlerError,
    InvalidTopicError,
    UrlError,
)
from tests.consuming.queues_to_handle import ListQueue, RecordingQueue


@pytest.fixture
def queue() -> RecordingQueue:
    return RecordingQueue()


def test_a_queue_without_dead_letters_needs_to_be_told_where_they_go() -> None:
    app = App(group="g")
    app.handle(ListQueue())(print)
    with pytest.raises(ConfigError, match=r"pass dead_letters=.* 'list' has no dead letters of its own"):
        app.run()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"order": "key"}, ConfigError, "gives up order"),
        ({"order": "partition"}, ConfigError, "gives up order"),
        ({"guarantee": "exactly-once"}, GuaranteeError, "at-least-once"),
        ({"guarantee": "at-most-once"}, GuaranteeError, "at-least-once"),
        ({"checkpoints": "sqlite:./x.db"}, ConfigError, "keeps its own progress"),
        ({"shared": True}, ConfigError, "shared"),
        ({"batch": 10}, ConfigError, "batch"),
        ({"start": "latest"}, ConfigError, "start"),
        ({"end": "latest"}, ConfigError, "end"),
        ({"on_expired": "earliest"}, ConfigError, "on_expired"),
        ({"idempotency_key": "key"}, ConfigError, "idempotency_key"),
        ({"on_assigned": print}, ConfigError, "on_assigned"),
        ({"snapshot": print, "restore": print}, ConfigError, "snapshot"),
        ({"to": "bills"}, ConfigError, "no stream"),
    ],
)
def test_what_does_not_go_with_a_queue_is_refused_when_it_is_declared(
    queue: RecordingQueue, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    app = App(group="g")
    with pytest.raises(error, match=says):
        app.handle(queue, **options)(lambda value: None)


def test_a_run_with_an_end_is_refused(queue: RecordingQueue) -> None:
    app = App(group="g")
    app.handle(queue)(lambda value: None)
    with pytest.raises(ConfigError, match="a queue has no end"):
        app.run(end="latest")


def test_two_handlers_of_one_queue_are_refused(queue: RecordingQueue) -> None:
    app = App(group="g")
    app.handle(queue)(lambda value: None)
    with pytest.raises(HandlerError, match="both handle queue 'jobs'"):
        app.handle(queue)(lambda value: None)


def test_an_unknown_scheme_names_those_that_are_installed() -> None:
    app = App(group="g")
    with pytest.raises(UrlError, match=r"'pigeon://coop/jobs' is not a URL of a queue; .* installed: .*memory:"):
        app.handle("pigeon://coop/jobs")
    with pytest.raises(UrlError) as refused:
        app.handle("pigeon://user:secret@coop/jobs")
    assert "secret" not in str(refused.value)


def test_a_topic_needs_a_stream_and_an_object_that_is_no_queue_is_told_what_it_lacks() -> None:
    app = App(group="g")
    with pytest.raises(ConfigError, match="topic 'orders': the app has no stream"):
        app.handle("orders")

    class Half:
        def receive(self) -> None: ...

        def close(self) -> None: ...

    with pytest.raises(ConfigError, match="has no name, features, settle, send"):
        app.handle(Half())  # type: ignore[arg-type]
    with pytest.raises(InvalidTopicError, match="is not a topic"):
        app.handle(7)  # type: ignore[arg-type]
