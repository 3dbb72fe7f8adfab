"""Traces through the headers of records: what leads from whom to whom, and how failures look."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import penstock
from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.context import Context
from penstock.errors import MissingExtraError
from penstock.model import Guarantee, NewRecord
from penstock.model.observing import OBSERVED
from penstock.observe.tracing import stop_tracing, trace
from penstock.streams.memory import MemoryStream

TRACEPARENT = "traceparent"


class Spans:
    """What was traced so far."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


def has(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes.get(name)


def is_below(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert child.context is not None
    assert parent.context is not None
    return (
        child.parent is not None
        and child.parent.span_id == parent.context.span_id
        and child.context.trace_id == parent.context.trace_id
    )


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    trace(found.provider)
    yield found
    stop_tracing()


@pytest.fixture
def streams() -> Iterator[MemoryStream]:
    found = MemoryStream(partitions=1)
    yield found
    found.close()


def run(streams: Any, topic: str, handler: Any, *, group: str = "group", **options: Any) -> None:
    app = App(streams, group=group, checkpoints=MemoryCheckpoints())
    app.handle(topic, end="latest", **options)(handler)
    app.run()


def send(streams: MemoryStream, topic: str, *values: bytes) -> None:
    for value in values:
        streams.send(topic, value).result(5)


def headers_of(streams: Any, topic: str) -> list[dict[str, bytes | None]]:
    return [dict(record.headers) for record in streams.read(topic)]


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE])
def test_a_record_is_followed_from_its_producer_through_two_apps_of_a_real_log(
    spans: Spans, tmp_path: Path, guarantee: Guarantee
) -> None:
    def first(value: bytes) -> bytes:
        return value + b"!"

    async def second(value: bytes) -> None:
        assert value == b"order!"

    with penstock.connect(f"log:{tmp_path}/data", exit_when_idle_s=2) as stream:
        for topic in ("orders", "bills"):
            stream.create_topic(topic, 1)
        with penstock.Producer(stream) as producer:
            producer.send("orders", b"order", key="ada").result(20)
        billing = App(stream, group="billing")
        billing.handle("orders", to="bills", end="latest", guarantee=guarantee)(first)
        billing.run()
        run(stream, "bills", second, group="mailing")
    sent, billed = spans.one("send orders"), spans.one("process orders")
    created, mailed = spans.one("create bills"), spans.one("process bills")
    assert sent.parent is None
    assert is_below(billed, sent)
    assert is_below(created, billed)
    assert is_below(mailed, created)
    assert (sent.kind, billed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert has(sent, "messaging.kafka.offset") == 0
    assert has(sent, "messaging.kafka.message.key") == "ada"
    assert has(billed, "messaging.destination.name") == "orders"
    assert has(billed, "messaging.operation.type") == "process"
    assert has(billed, "messaging.consumer.group.name") == "billing"
    assert has(billed, "messaging.destination.partition.id") == "0"
    assert {span.status.status_code for span in (sent, billed, created, mailed)} == {StatusCode.UNSET}


def test_a_connection_leads_its_readers_back_as_a_producer_does(spans: Spans) -> None:
    with penstock.connect("memory:traced-connection") as stream:
        stream.send("orders", b"1", headers={"kept": "yes", TRACEPARENT: "what was there before"}).result(5)
        (headers,) = headers_of(stream, "orders")
    span = spans.one("send orders")
    assert span.context is not None
    assert headers["kept"] == b"yes"
    expected = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-".encode()
    assert (headers[TRACEPARENT] or b"").startswith(expected)


def test_a_spool_is_told_of_once(spans: Spans, tmp_path: Path) -> None:
    with penstock.connect(f"log:{tmp_path}/data", spool=tmp_path / "spool", exit_when_idle_s=2) as stream:
        stream.send("orders", b"1").result(20)
        (record,) = stream.read("orders")
    assert spans.names == ["send orders"]
    assert [name for name, _ in record.headers].count(TRACEPARENT) == 1


def test_what_a_handler_sends_itself_is_below_its_call(spans: Spans, streams: MemoryStream) -> None:
    send(streams, "orders", b"1")

    def handle(value: bytes, ctx: Context) -> None:
        ctx.send("by-context", b"2")
        streams.send("by-itself", b"3")

    run(streams, "orders", handle)
    call = spans.one("process orders")
    assert is_below(spans.one("create by-context"), call)
    assert is_below(spans.one("send by-itself"), call)
    assert all(TRACEPARENT in headers for headers in headers_of(streams, "by-context"))


def test_records_and_lists_that_a_handler_returns_lead_back_to_it(spans: Spans, streams: MemoryStream) -> None:
    send(streams, "orders", b"1")
    run(streams, "orders", lambda value: [NewRecord("a", b"1"), NewRecord("b", b"2", headers=(("x", b"y"),))])
    call = spans.one("process orders")
    assert is_below(spans.one("create a"), call)
    assert is_below(spans.one("create b"), call)
    assert headers_of(streams, "b")[0]["x"] == b"y"


def test_a_batch_is_linked_to_every_record_in_it(spans: Spans, streams: MemoryStream) -> None:
    send(streams, "orders", b"1", b"2", b"3")
    streams.open_topic("orders").append([NewRecord("orders", b"nobody traced this one")])[0].result(5)

    def handle(values: list[bytes]) -> list[bytes]:
        return [b"sum"]

    run(streams, "orders", handle, batch=10, to="sums")
    call = spans.one("process orders")
    sent = spans.named("send orders")
    assert [link.context.span_id for link in call.links] == [each.context.span_id for each in sent if each.context]
    assert call.parent is None
    assert has(call, "messaging.batch.message_count") == 4
    assert is_below(spans.one("create sums"), call)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_attempts_that_fail_are_events_and_the_last_one_an_error(
    spans: Spans, streams: MemoryStream, tmp_path: Path, is_async: bool
) -> None:
    send(streams, "orders", b"1")

    def handle(value: bytes) -> None:
        raise ValueError("no")

    async def handle_async(value: bytes) -> None:
        raise ValueError("no")

    retry = penstock.Retry(3, first_delay_s=0.0)
    letters = f"file:{tmp_path}/letters.jsonl"
    run(streams, "orders", handle_async if is_async else handle, retry=retry, dead_letters=letters)
    sent, attempts = spans.one("send orders"), spans.named("process orders")
    assert [has(each, "penstock.attempt") for each in attempts] == [1, 2, 3]
    assert [[event.name for event in each.events] for each in attempts] == [
        ["exception", "penstock.retry"],
        ["exception", "penstock.retry"],
        ["exception"],
    ]
    codes = [each.status.status_code for each in attempts]
    assert codes == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    letter = spans.one("dead_letter orders")
    assert letter.status.status_code is StatusCode.ERROR
    assert letter.status.description == "ValueError: no"
    assert has(letter, "messaging.operation.type") == "settle"
    assert all(is_below(each, sent) for each in (*attempts, letter))


def test_a_record_that_cannot_be_decoded_is_seen_in_its_trace(
    spans: Spans, streams: MemoryStream, tmp_path: Path
) -> None:
    send(streams, "orders", b"{")

    def handle(value: dict[str, int]) -> None: ...

    run(streams, "orders", handle, dead_letters=f"file:{tmp_path}/letters.jsonl")
    assert spans.names == ["send orders", "dead_letter orders"]
    assert is_below(spans.one("dead_letter orders"), spans.one("send orders"))


def test_a_rejected_record_is_an_error_at_once(spans: Spans, streams: MemoryStream, tmp_path: Path) -> None:
    send(streams, "orders", b"1")

    def handle(value: bytes) -> None:
        raise penstock.Reject("never")

    run(streams, "orders", handle, dead_letters=f"file:{tmp_path}/letters.jsonl")
    assert spans.one("process orders").status.status_code is StatusCode.ERROR


def test_a_shared_handler_is_traced_as_well(spans: Spans, streams: MemoryStream) -> None:
    send(streams, "orders", b"1")
    app = App(streams, group="sharing", checkpoints=MemoryCheckpoints())

    @app.handle("orders", shared=True, order="none", to="bills")
    def handle(value: bytes) -> bytes:
        app.stop()
        return value

    app.run()
    assert is_below(spans.one("process orders"), spans.one("send orders"))
    assert is_below(spans.one("create bills"), spans.one("process orders"))


def test_exactly_once_in_sql_is_traced_and_stays_exactly_once(
    spans: Spans, streams: MemoryStream, tmp_path: Path
) -> None:
    send(streams, "orders", b"1", b"2", b"3")
    app = App(streams, group="sql", checkpoints=f"sqlite:{tmp_path}/orders.db")
    with sqlite3.connect(tmp_path / "orders.db") as database:
        database.execute("CREATE TABLE bill (value TEXT)")

    @app.handle("orders", end="latest", guarantee="exactly-once", retry=penstock.Retry(2, first_delay_s=0.0))
    def bill(value: bytes, ctx: Context) -> None:
        with ctx.transaction() as inside:
            inside.execute("INSERT INTO bill VALUES (?)", (value.decode(),))
        if value == b"2" and ctx.attempt == 1:
            raise ValueError("once more")

    app.run()
    with sqlite3.connect(tmp_path / "orders.db") as database:
        assert sorted(database.execute("SELECT value FROM bill")) == [("1",), ("2",), ("3",)]
    assert {span.parent.span_id for span in spans.named("process orders") if span.parent} == {
        span.context.span_id for span in spans.named("send orders") if span.context
    }
    assert max(has(span, "penstock.attempt") for span in spans.named("process orders")) == 2


def double(value: bytes) -> bytes:
    """A handler that another process can find by its name."""
    if value == b"bad":
        raise ValueError("bad")
    return value * 2


def test_a_handler_in_another_process_is_traced_from_here(spans: Spans, streams: MemoryStream, tmp_path: Path) -> None:
    send(streams, "orders", b"1", b"bad")
    letters = f"file:{tmp_path}/letters.jsonl"
    run(streams, "orders", double, processes=True, to="doubles", retry=penstock.Retry(1), dead_letters=letters)
    good, bad = spans.named("process orders")
    assert is_below(spans.one("create doubles"), good)
    assert bad.status.status_code is StatusCode.ERROR
    assert is_below(bad, spans.named("send orders")[1])
    assert [record.value for record in streams.read("doubles")] == [b"11"]


def test_stages_and_tasks_of_other_topics_stay_in_the_trace(spans: Spans, streams: MemoryStream) -> None:
    send(streams, "orders", b"1")
    streams.create_topic("parts", 1)
    app = App(streams, group="stages", checkpoints=MemoryCheckpoints())

    @app.handle("orders")
    def fork(value: bytes, ctx: Context) -> None:
        ctx.emit("look", value)
        ctx.emit("parts", value)

    @app.stage("look")
    def look(value: bytes) -> None: ...

    @app.handle("parts")
    def part(value: bytes) -> None:
        app.stop()

    app.run()
    sent = spans.one("send orders")
    looked, forked = sorted(
        spans.named("process orders"), key=lambda span: has(span, "penstock.handler") != "stage look"
    )
    assert has(looked, "penstock.handler") == "stage look"
    assert is_below(looked, sent)
    assert is_below(forked, sent)
    assert is_below(spans.one("send parts"), forked)
    assert is_below(spans.one("process parts"), spans.one("send parts"))


def test_a_handler_that_takes_the_record_is_not_given_more_to_decode(spans: Spans, streams: MemoryStream) -> None:
    send(streams, "orders", b"no json at all")
    seen: list[penstock.Record] = []

    def handle(record: penstock.Record) -> None:
        seen.append(record)

    run(streams, penstock.Topic("orders", dict), handle)  # type: ignore[arg-type]
    assert [record.value for record in seen] == [b"no json at all"]
    assert len(spans.named("process orders")) == 1


@pytest.mark.parametrize(
    "header", [b"", b"nonsense", b"00-zz", b"\xff\xfe", b"00-" + b"0" * 32 + b"-" + b"0" * 16, None]
)
def test_headers_that_lead_nowhere_begin_a_trace_of_their_own(
    spans: Spans, streams: MemoryStream, header: bytes | None
) -> None:
    record = NewRecord("orders", b"1", headers=((TRACEPARENT, header),))
    streams.open_topic("orders").append([record])[0].result(5)
    run(streams, "orders", lambda value: None)
    assert spans.one("process orders").parent is None


def test_a_record_that_cannot_be_sent_ends_its_span_as_an_error(spans: Spans) -> None:
    with (
        penstock.Producer("memory:refused", max_request_bytes=1000) as producer,
        pytest.raises(penstock.PenstockError),
    ):
        producer.send("orders", b"x" * 10_000)
    span = spans.one("send orders")
    assert span.status.status_code is StatusCode.ERROR
    assert has(span, "error.type") == "RecordTooLargeError"


def test_without_tracing_records_and_programs_stay_as_they_are(streams: MemoryStream) -> None:
    assert OBSERVED.tracer is None
    send(streams, "orders", b"1")
    run(streams, "orders", lambda value: NewRecord("bills", b"2"))
    assert headers_of(streams, "orders") == [{}]
    assert headers_of(streams, "bills") == [{}]


def lines_of(program: str) -> Sequence[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_nothing_of_opentelemetry_is_loaded_until_it_is_asked_for() -> None:
    program = (
        "import sys, penstock, penstock.app, penstock.observe.tracing, penstock.producing\n"
        "with penstock.connect('memory:x') as stream: stream.send('t', b'1').result(5)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
        "penstock.observe.tracing.trace()\n"
        "print('opentelemetry.trace' in sys.modules, 'opentelemetry.sdk' in sys.modules)\n"
    )
    assert lines_of(program) == ["[]", "True False"]


def test_a_program_without_opentelemetry_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"penstock\[otel\]"):
        trace()
    assert OBSERVED.tracer is None


def test_a_program_without_the_sdk_sends_no_empty_headers() -> None:
    program = (
        "import penstock, penstock.observe.tracing\n"
        "penstock.observe.tracing.trace()\n"
        "with penstock.connect('memory:x') as stream:\n"
        "    stream.send('t', b'1').result(5)\n"
        "    print([record.headers for record in stream.read('t')])\n"
    )
    assert lines_of(program) == ["[()]"]
