"""Middlewares: what stands around each call of a handler, in which order, and what becomes of errors."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Context, Retry
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import HandlerError, Reject
from penstock.model import DeadLetterFilter, Record
from penstock.streams.memory import MemoryStream
from tests.consuming import busy_handlers

Fill = Callable[..., None]
Consume = Callable[..., App]
QUICK = Retry(3, first_delay_s=0)


class Notes(list[str]):
    """A middleware that writes down when it is entered and left."""

    def named(self, name: str) -> Callable[[Context], contextlib.AbstractContextManager[None]]:
        @contextlib.contextmanager
        def around(ctx: Context) -> Iterator[None]:
            self.append(f"{name} in {ctx.record.offset} attempt {ctx.attempt}")
            try:
                yield
            except Exception as error:
                self.append(f"{name} saw {error}")
                raise
            self.append(f"{name} out {ctx.record.offset}")

        return around


@pytest.fixture
def notes() -> Notes:
    return Notes()


def test_those_of_the_app_are_outermost_and_each_in_the_order_it_was_given(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill, notes: Notes
) -> None:
    fill("orders", 1)
    around = [notes.named("first"), notes.named("second")]
    app = App(streams, group="g", checkpoints=store, middlewares=around)
    app.handle("orders", end="latest", middlewares=[notes.named("own")])(lambda value: notes.append(f"value {value!r}"))
    app.run()
    assert notes == [
        *("first in 0 attempt 1", "second in 0 attempt 1", "own in 0 attempt 1", "value b'0'"),
        *("own out 0", "second out 0", "first out 0"),
    ]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *itertools.product(
            ("plain", "async", "with record and context"),
            (
                {},
                {"order": "none", "workers": 3},
                {"order": "key", "workers": 3},
                {"guarantee": "at-most-once"},
                {"order": "none", "shared": True},
            ),
        ),
        ("in another process", {"processes": True, "to": "out"}),
    ],
)
def test_each_call_of_every_kind_of_handler_is_inside(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill, kind: str, options: dict[str, Any]
) -> None:
    fill("orders", 20)
    seen: set[tuple[int, str, str]] = set()

    @contextlib.contextmanager
    def note(ctx: Context) -> Iterator[None]:
        yield
        seen.add((ctx.record.offset, ctx.group, ctx.handler))
        if len(seen) == 20:
            app.stop()

    def handle(value: bytes) -> None:
        assert len(value) < 3

    async def handle_async(value: bytes) -> None:
        assert len(value) < 3

    def handle_all(value: bytes, record: Record, ctx: Context) -> None:
        assert record.value == value == ctx.record.value

    functions: dict[str, Callable[..., Any]] = {
        "plain": handle,
        "async": handle_async,
        "with record and context": handle_all,
        "in another process": busy_handlers.pid_of,
    }
    function = functions[kind]
    app = App(streams, group="g", checkpoints=store)
    app.handle("orders", middlewares=[note], **options)(function)
    app.run()
    name = function.__qualname__
    assert seen == {(offset, "g", name) for offset in range(20)}


def test_a_batch_is_one_call(fill: Fill, consume: Consume) -> None:
    fill("orders", 10)
    sizes: list[int] = []
    inside: list[int] = []

    @contextlib.contextmanager
    def note(ctx: Context) -> Iterator[None]:
        inside.append(ctx.record.offset)
        yield

    consume(lambda values: sizes.append(len(values)), batch=5, middlewares=[note])
    assert sum(sizes) == 10
    assert inside == [sum(sizes[:number]) for number in range(len(sizes))]


def test_an_error_passes_through_and_the_record_is_tried_again(notes: Notes, fill: Fill, consume: Consume) -> None:
    fill("orders", 1)

    def handle(value: bytes, ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError(f"no {ctx.attempt}")

    consume(handle, retry=QUICK, middlewares=[notes.named("m")])
    assert notes == [
        *("m in 0 attempt 1", "m saw no 1", "m in 0 attempt 2", "m saw no 2"),
        *("m in 0 attempt 3", "m out 0"),
    ]


def test_a_middleware_may_turn_an_error_into_another(streams: MemoryStream, fill: Fill, consume: Consume) -> None:
    fill("orders", 1)

    @contextlib.contextmanager
    def never_again(ctx: Context) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise Reject(f"unknown: {error}") from error

    calls: list[bytes] = []

    def handle(value: bytes) -> None:
        calls.append(value)
        raise KeyError("ada")

    consume(handle, middlewares=[never_again])
    (letter,) = open_dead_letters("orders.dlq", streams).browse(DeadLetterFilter())
    assert letter.error == "Reject: unknown: 'ada'"
    assert len(calls) == 1


@pytest.mark.parametrize("processes", [False, True])
def test_one_that_swallows_the_error_has_the_record_count_as_done(
    streams: MemoryStream, fill: Fill, consume: Consume, processes: bool
) -> None:
    fill("orders", 5)
    consume(
        busy_handlers.fails_at_3,
        to="out",
        retry=Retry(1),
        processes=processes,
        middlewares=[lambda ctx: contextlib.suppress(LookupError)],
    )
    assert len(streams.open_topic("out").read(0, 0, 1000, 1)) == 4
    assert "orders.dlq" not in streams.topics()


def test_what_a_middleware_sends_for_a_handler_in_processes_stops_the_app_and_is_not_lost_in_silence(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 1)

    @contextlib.contextmanager
    def sends(ctx: Context) -> Iterator[None]:
        yield
        ctx.send("out", b"seen")

    with pytest.raises(HandlerError, match=r"a middleware sent a record with ctx\.send"):
        consume(busy_handlers.pid_of, to="pids", processes=True, middlewares=[sends])


def test_an_error_of_the_middleware_itself_fails_the_record(
    streams: MemoryStream, fill: Fill, consume: Consume
) -> None:
    fill("orders", 2)
    handled: list[bytes] = []

    @contextlib.contextmanager
    def breaks(ctx: Context) -> Iterator[None]:
        if ctx.record.offset == 0:
            raise OSError("no session")
        yield

    consume(handled.append, retry=Retry(1), middlewares=[breaks])
    (letter,) = open_dead_letters("orders.dlq", streams).browse(DeadLetterFilter())
    assert letter.error == "OSError: no session"
    assert handled == [b"1"]


def test_async_handlers_take_async_and_plain_ones_together(notes: Notes, fill: Fill, consume: Consume) -> None:
    fill("orders", 1)

    @contextlib.asynccontextmanager
    async def session(ctx: Context) -> AsyncIterator[None]:
        notes.append("opened")
        yield
        notes.append("closed")

    async def handle(value: bytes) -> None:
        notes.append("handled")

    consume(handle, middlewares=[session, notes.named("m")])
    assert notes == ["opened", "m in 0 attempt 1", "handled", "m out 0", "closed"]


def test_the_transaction_of_exactly_once_is_around_them(tmp_path: Path, fill: Fill, consume: Consume) -> None:
    """What a middleware writes into the record's transaction counts when the handler's effect does, and only then."""
    fill("orders", 30)
    database = tmp_path / "orders.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE effects (value INT)")
        db.execute("CREATE TABLE audit (value INT)")

    @contextlib.contextmanager
    def audited(ctx: Context) -> Iterator[None]:
        with ctx.transaction() as db:
            db.execute("INSERT INTO audit VALUES (?)", (int(ctx.record.value or b""),))
        yield
        if ctx.record.offset % 10 == 3 and ctx.attempt == 1:
            raise ValueError("after the effect")

    def insert(value: bytes, ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("INSERT INTO effects VALUES (?)", (int(value),))

    consume(insert, checkpoints=f"sqlite:{database}", guarantee="exactly-once", retry=QUICK, middlewares=[audited])
    with sqlite3.connect(database) as db:
        for table in ("effects", "audit"):
            assert [row[0] for row in db.execute(f"SELECT value FROM {table} ORDER BY value")] == list(range(30))


async def coroutine(ctx: Context) -> None: ...


@contextlib.asynccontextmanager
async def asynchronous(ctx: Context) -> AsyncIterator[None]:
    yield


def generator(ctx: Context) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("middleware", "complaint"),
    [
        ("timed", "is not callable"),
        (generator, r"decorate it with contextlib\.contextmanager"),
        (coroutine, "is a coroutine function"),
        (asynchronous, "is a plain def"),
    ],
)
def test_what_is_no_middleware_is_refused_when_it_is_declared(
    streams: MemoryStream, middleware: Any, complaint: str
) -> None:
    app = App(streams, group="g")
    with pytest.raises(HandlerError, match=complaint):
        app.handle("orders", middlewares=[middleware])(lambda value: None)


def test_one_that_gives_no_context_manager_stops_the_app(streams: MemoryStream, fill: Fill, consume: Consume) -> None:
    fill("orders", 1)
    with pytest.raises(HandlerError, match="returned None, not a context manager"):
        consume(lambda value: None, middlewares=[lambda ctx: None])
