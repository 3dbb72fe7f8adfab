"""What cannot work is refused at the earliest moment, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.app import App
from penstock.consuming import Breaker, Context, Retry
from penstock.errors import ConfigError, GroupError, GuaranteeError, HandlerError, UrlError
from penstock.model import Record
from penstock.streams.memory import MemoryStreams


@pytest.fixture
def app(streams: MemoryStreams) -> App:
    return App(streams, group="group")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"wokers": 3}, "there is no option 'wokers'"),
        ({"order": "keys"}, "order='keys' is not one of 'partition', 'key', 'none'"),
        ({"guarantee": "twice"}, "guarantee='twice' is not one of"),
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"retry": "often"}, "use Retry"),
        ({"start": "yesterday"}, "is no position"),
        ({"visibility_s": 5}, "visibility_s needs order='none'"),
        ({"assignor": "best"}, "assignor 'best' is not one of"),
        ({"idempotency_key": 7}, "idempotency_key=7"),
        ({"commit_interval_s": -1}, "commit_interval_s=-1"),
    ],
)
def test_an_option_that_is_not_one_is_named(app: App, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        app.handle("orders", **options)


def generator(value: bytes) -> Iterator[int]:
    yield 1


def two_values(one: bytes, two: bytes) -> None: ...


def nothing() -> None: ...


def gives(value: bytes) -> int:
    return 1


def by_name(value: bytes, *, database: object) -> None: ...


def batch_of_records(record: Record) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "complaint"),
    [
        (generator, {}, "is a generator"),
        (two_values, {}, "more than one value"),
        (nothing, {}, "takes nothing"),
        (gives, {}, "nobody takes it"),
        (by_name, {}, "database= by name"),
        (batch_of_records, {"batch": 10}, "it takes a list"),
        (int, {}, "is a class"),
        (42, {}, "it cannot be called"),
        (two_values, {"batch": 0}, "more than one value"),
        (nothing, {"batch": 0}, "takes nothing"),
        (lambda value: None, {"batch": 0}, "batch=0"),
    ],
)
def test_a_function_that_is_no_handler_is_refused_with_the_reason(
    app: App, handler: Any, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(HandlerError, match=complaint):
        app.handle("orders", **options)(handler)


def test_two_handlers_of_one_topic_in_one_group_are_refused(app: App) -> None:
    app.handle("orders")(lambda value: None)
    with pytest.raises(HandlerError, match="both handle topic 'orders'"):
        app.handle("orders")(lambda value: None)
    app.handle("orders", group="another")(lambda value: None)


def test_an_app_without_a_group_or_handlers_is_refused(streams: MemoryStreams) -> None:
    with pytest.raises(GroupError, match="needs a group"):
        App(streams, group="")
    with pytest.raises(HandlerError, match="no handlers"):
        App(streams, group="group").run()
    with pytest.raises(ConfigError, match="acks: options of the connection"):
        App(streams, group="group", acks=1)


def test_a_url_that_is_none_is_told_when_the_app_runs() -> None:
    app = App("carrier-pigeon://coop", group="group")
    app.handle("orders")(lambda value: None)
    with pytest.raises(UrlError, match="supported now"):
        app.run()


def run_with(app: App, handler: Callable[..., Any], **options: Any) -> None:
    app.handle("orders", end="latest", **options)(handler)
    app.run()


def with_context(value: bytes, ctx: Context) -> None: ...


async def coroutine(value: bytes) -> None: ...


def test_processes_refuse_what_cannot_cross_between_them(app: App, fill: Callable[..., None]) -> None:
    fill("orders", 1)
    with pytest.raises(HandlerError, match="takes a Context"):
        run_with(app, with_context, processes=True)


@pytest.mark.parametrize(("handler", "complaint"), [(lambda value: None, "top of a module"), (coroutine, "is async")])
def test_processes_refuse_handlers_that_they_cannot_find(
    app: App, fill: Callable[..., None], handler: Any, complaint: str
) -> None:
    fill("orders", 1)
    with pytest.raises(HandlerError, match=complaint):
        run_with(app, handler, processes=True)


def test_an_unknown_store_or_place_for_dead_letters_is_named(app: App, fill: Callable[..., None]) -> None:
    fill("orders", 1)
    with pytest.raises(ConfigError, match="ftp"):
        run_with(app, lambda value: None, checkpoints="ftp:./x")


def test_an_unknown_place_for_dead_letters_is_named(app: App, fill: Callable[..., None]) -> None:
    fill("orders", 1)
    with pytest.raises(ConfigError, match="ftp"):
        run_with(app, lambda value: None, dead_letters="ftp://host/letters")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(0),
        lambda: Retry(3, factor=0.5),
        lambda: Retry(3, jitter=2),
        lambda: Retry(3, on={5: Retry(1)}),  # type: ignore[dict-item]
        lambda: Breaker(after=-1),
        lambda: Breaker(pause_s=0),
    ],
)
def test_policies_that_make_no_sense_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_an_idempotency_key_makes_no_sense_with_at_most_once(app: App) -> None:
    with pytest.raises(GuaranteeError, match="at-most-once"):
        app.handle("orders", guarantee="at-most-once", idempotency_key="key")
