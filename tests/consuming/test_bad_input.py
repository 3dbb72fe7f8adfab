"""What cannot work is refused at the earliest moment, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.app import App
from penstock.consuming import CircuitBreaker, Consumer, Context, Retry
from penstock.consuming.handlers import HandlerArgument, handler_of
from penstock.errors import ConfigError, GroupError, GuaranteeError, HandlerError, InvalidTopicError, UrlError
from penstock.model import Record
from penstock.streams.memory import MemoryStream


@pytest.fixture
def app(streams: MemoryStream) -> App:
    return App(streams, group="group")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"wokers": 3}, "there is no option 'wokers': did you mean 'workers'"),
        ({"partition_in_flight": 0}, "partition_in_flight=0"),
        ({"breaker": 3}, "breaker=3 must be a CircuitBreaker"),
        ({"processes": "yes"}, "processes='yes' must be a bool"),
        ({"session_timeout_s": 0}, "session_timeout_s=0"),
        ({"order": "none", "visibility_s": "5"}, "visibility_s='5'"),
        ({"drain_s": float("nan")}, "drain_s=nan"),
        ({"start": None}, "start=None is not a position"),
        ({"order": "keys"}, "order='keys' is not one of 'partition', 'key', 'none'"),
        ({"guarantee": "twice"}, "guarantee='twice' is not one of"),
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"retry": "often"}, "use Retry"),
        ({"start": "yesterday"}, "is not a position"),
        ({"visibility_s": 5}, "visibility_s needs order='none'"),
        ({"assignor": "best"}, "assignor 'best' is not one of"),
        ({"idempotency_key": 7}, "idempotency_key=7"),
        ({"commit_interval_s": -1}, "commit_interval_s=-1"),
        ({"guarantee": "at-most-once", "retry": 3}, "retry has no effect with at-most-once"),
    ],
)
def test_an_option_that_is_not_one_is_named(app: App, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        app.handle("orders", **options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"assignor": "range"}, r"assignor='range' has no effect: .*orders' has no groups of its own.* Omit assignor"),
        ({"batch": 10, "chunk": 20}, "chunk has no effect with batch=10: omit one of them"),
    ],
)
@pytest.mark.parametrize("topic", ["orders", re.compile("orders")])
def test_an_option_that_would_have_no_effect_is_refused(
    app: App, streams: MemoryStream, topic: Any, options: dict[str, Any], complaint: str
) -> None:
    streams.create_topic("orders")
    app.handle(topic, **options)(lambda value: None)
    with pytest.raises(ConfigError, match=complaint):
        app.run(end="latest")


@pytest.mark.parametrize("options", [{"shared": True}, {"tree_timeout_s": 5}, {"chunk": 5}, {"drain_s": 5}])
def test_an_option_of_handlers_is_refused_by_a_consumer(streams: MemoryStream, options: dict[str, Any]) -> None:
    streams.create_topic("orders")
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is an option of handlers"):
        Consumer(streams, "orders", group="group", **options)
    with pytest.raises(ConfigError, match="assignor='sticky' has no effect"):
        Consumer(streams, "orders", group="group", assignor="sticky")
    Consumer(streams, "orders", group="group", assignor="cooperative").close()


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
        (nothing, {}, "takes no argument"),
        (gives, {}, "has no output topic"),
        (by_name, {}, "requires the keyword argument database"),
        (batch_of_records, {"batch": 10}, "it takes a list"),
        (int, {}, "is a class"),
        (42, {}, "is not callable"),
        (two_values, {"batch": 0}, "more than one value"),
        (nothing, {"batch": 0}, "takes no argument"),
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


def test_an_app_without_a_group_or_handlers_is_refused(streams: MemoryStream) -> None:
    with pytest.raises(GroupError, match="needs a group"):
        App(streams, group="")
    with pytest.raises(HandlerError, match="no handlers"):
        App(streams, group="group").run()
    with pytest.raises(ConfigError, match="acks: pass options of the connection"):
        App(streams, group="group", acks=1)


def test_a_url_that_is_none_is_told_when_the_app_is_made() -> None:
    with pytest.raises(UrlError, match="schemes that are installed"):
        App("carrier-pigeon://coop", group="group")
    with pytest.raises(ConfigError, match="7 is not a stream"):
        App(7, group="group")  # type: ignore[arg-type]


def test_a_misspelt_option_of_an_app_is_told_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="did you mean 'checkpoints'"):
        App("memory:", group="group", chekpoints="sqlite:./x.db")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean 'acks'"):
        App("memory:", group="group", ack=1)  # type: ignore[call-arg]


def test_a_decorator_without_its_topic_is_told(app: App) -> None:
    with pytest.raises(HandlerError, match="the topic is missing: got with_context instead"):
        app.handle(with_context)  # type: ignore[arg-type]
    with pytest.raises(InvalidTopicError, match="5 is not a topic"):
        app.handle(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTopicError, match="'two words' is not a topic name"):
        app.handle("two words")


def test_dead_letters_in_the_topic_itself_are_refused(app: App, streams: MemoryStream) -> None:
    with pytest.raises(ConfigError, match=r"come back for ever: .* orders\.dlq"):
        app.handle("orders", dead_letters="orders")(lambda value: None)
    with pytest.raises(ConfigError, match="is the topic that this consumer reads"):
        Consumer(streams, "orders", group="group", dead_letters="orders")


def test_a_type_that_cannot_be_found_is_told_instead_of_giving_bytes(app: App) -> None:
    class Local: ...

    def handle(order: Local) -> None: ...

    with pytest.raises(HandlerError, match=r"Local cannot be resolved .* Topic\('orders', Local\)"):
        app.handle("orders")(handle)


def test_a_context_is_known_by_the_text_of_its_type_where_only_type_checkers_see_it(app: App) -> None:
    def handle(value: bytes, first: penstock.Context, second: Record) -> None: ...

    handle.__annotations__.update(first="nowhere.Context", second="Record | Nothing".partition(" ")[0])
    found = handler_of(handle, "orders")
    assert found.wants == (HandlerArgument.VALUE, HandlerArgument.CONTEXT, HandlerArgument.RECORD)


def run_with(app: App, handler: Callable[..., Any], **options: Any) -> None:
    app.handle("orders", end="latest", **options)(handler)
    app.run()


def with_context(value: bytes, ctx: Context) -> None: ...


async def coroutine(value: bytes) -> None: ...


def test_processes_refuse_what_cannot_cross_between_them(app: App, fill: Callable[..., None]) -> None:
    fill("orders", 1)
    with pytest.raises(HandlerError, match="takes a Context"):
        run_with(app, with_context, processes=True)


@pytest.mark.parametrize(
    ("handler", "complaint"), [(lambda value: None, "top level of a module"), (coroutine, "is async")]
)
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
        lambda: CircuitBreaker(after=-1),
        lambda: CircuitBreaker(pause_s=0),
    ],
)
def test_policies_that_make_no_sense_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_an_idempotency_key_makes_no_sense_with_at_most_once(app: App) -> None:
    with pytest.raises(GuaranteeError, match="at-most-once"):
        app.handle("orders", guarantee="at-most-once", idempotency_key="key")


def uses_a_transaction(value: bytes, ctx: Context) -> None:
    with ctx.transaction():
        raise AssertionError("there is none")


def test_a_handler_that_is_wrong_stops_the_app_instead_of_giving_good_records_up(
    app: App, streams: MemoryStream, fill: Callable[..., None]
) -> None:
    fill("orders", 3)
    with pytest.raises(HandlerError, match="needs guarantee='exactly-once'"):
        run_with(app, uses_a_transaction, retry=1)
    assert "orders.dlq" not in streams.topics()
    again = App(streams, group="group")
    with pytest.raises(HandlerError, match="needs order='partition' or 'key'"):
        run_with(again, lambda value, ctx: ctx.state, order="none")
