"""OpenTelemetry traces through the headers of records: from sender to handler to what the handler sends.

`trace()` turns it on for this process, before anything is sent or an app is run. It needs opentelemetry-api alone; the
SDK of the program decides which spans are kept, and where they go. Names are those of OpenTelemetry's
conventions for messaging; others begin with `penstock.`.

- `send TOPIC`: a record from `send` until it is acknowledged. Its `traceparent` header carries the trace on.
- `process TOPIC`: one call of a handler, a child of the record's span; for a batch, linked to them all. A failed
  attempt has the exception as an event, and `penstock.retry` as another if it is retried; if the record is given up,
  the span has the status error.
- `create TOPIC`: a record that a handler returned, a child of its call.
- `dead_letter TOPIC`: a record went to the dead letters, a child of the record's span; its status is error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from penstock import __version__
from penstock.errors import MissingExtraError
from penstock.model import DeadLetter, Headers, NewRecord, Receipt, Record
from penstock.model.observing import OBSERVED

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, TracerProvider

TRACE_HEADERS: Final = ("traceparent", "tracestate")
_SYSTEM: Final = "kafka"
_LONGEST_KEY: Final = 200
_MOST_LINKS: Final = 128
"""OpenTelemetry's default limit of links per span."""


def trace(provider: TracerProvider | None = None) -> None:
    """Trace records through this process from now on: what it sends, and the handlers that start after this call.

    `provider` is OpenTelemetry's, or else the one that the program sets with `opentelemetry.trace.set_tracer_provider`.
    Raises MissingExtraError when opentelemetry-api is not installed.
    """
    try:
        OBSERVED.tracer = OpenTelemetryTracer(provider)
    except ImportError as error:
        raise MissingExtraError("tracing", "otel") from error


def stop_tracing() -> None:
    """Stop tracing. Running apps continue as they were started."""
    OBSERVED.tracer = None


class OpenTelemetryTracer:
    """A `penstock.abc.Tracer` that makes spans."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._otel = trace
        self._tracer = trace.get_tracer("penstock", __version__, provider)
        self._propagator = TraceContextTextMapPropagator()
        self._context = context
        self._kinds = trace.SpanKind

    def sending(self, record: NewRecord) -> tuple[NewRecord, Callable[[Receipt | BaseException], object]]:
        attributes = self._attributes(record.topic, "send", "send", record)
        span = self._tracer.start_span(f"send {record.topic}", kind=self._kinds.PRODUCER, attributes=attributes)

        def settled(receipt: Receipt | BaseException) -> None:
            error = receipt.error if isinstance(receipt, Receipt) else receipt
            if error is not None:
                self.fail(span, error)
            elif isinstance(receipt, Receipt):
                place = receipt.result(0)
                span.set_attribute("messaging.destination.partition.id", str(place.partition))
                span.set_attribute("messaging.kafka.offset", place.offset)
            span.end()

        return self.with_headers(record, span), settled

    def handling(self, records: Sequence[Record], *, group: str, handler: str, attempt: int) -> OpenTelemetryCall:
        first = records[0]
        attributes = self._attributes(first.topic, "process", "process", first if len(records) == 1 else None)
        attributes |= {
            "messaging.destination.partition.id": str(first.partition),
            "penstock.handler": handler,
            "penstock.attempt": attempt,
        }
        if group:
            attributes["messaging.consumer.group.name"] = group
        parent: Context | None = None
        links: list[Link] = []
        if len(records) == 1:
            attributes["messaging.kafka.offset"] = first.offset
            parent = self._parent(first.headers)
        else:
            attributes["messaging.batch.message_count"] = len(records)
            links = self._links(records)
        span = self._tracer.start_span(
            f"process {first.topic}",
            context=parent,
            kind=self._kinds.CONSUMER,
            attributes=attributes,
            links=links,
        )
        return OpenTelemetryCall(self, span, attempt)

    def gave_up(self, letter: DeadLetter) -> None:
        record = letter.record
        attributes = self._attributes(record.topic, "dead_letter", "settle", record)
        attributes |= {
            "messaging.consumer.group.name": letter.group,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "penstock.handler": letter.handler,
            "penstock.attempt": letter.attempts,
            "penstock.letter": letter.id,
            "error.type": letter.error_kind,
        }
        span = self._tracer.start_span(
            f"dead_letter {record.topic}",
            context=self._parent(record.headers),
            kind=self._kinds.CLIENT,
            attributes=attributes,
        )
        span.set_status(self._otel.Status(self._otel.StatusCode.ERROR, letter.error))
        span.end()

    def creating(self, record: NewRecord) -> NewRecord:
        """A record returned by the current call: it is sent later, with the call's guarantee."""
        attributes = self._attributes(record.topic, "create", "create", record)
        span = self._tracer.start_span(f"create {record.topic}", kind=self._kinds.PRODUCER, attributes=attributes)
        span.end()
        return self.with_headers(record, span)

    def attach(self, span: Span) -> Token[Context]:
        return self._context.attach(self._otel.set_span_in_context(span))

    def detach(self, token: Token[Context]) -> None:
        self._context.detach(token)

    def fail(self, span: Span, error: BaseException) -> None:
        """Mark the span as failed for good."""
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._otel.Status(self._otel.StatusCode.ERROR, f"{type(error).__name__}: {error}"))

    def with_headers(self, record: NewRecord, span: Span) -> NewRecord:
        """The record with the headers of this span, and without those of an earlier one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._otel.set_span_in_context(span))
        if not carrier:  # not a recording span: the program has no SDK, or samples this one out
            return record
        kept = tuple(header for header in record.headers if header[0] not in TRACE_HEADERS)
        added = tuple((name, text.encode()) for name, text in carrier.items())
        return dataclasses.replace(record, headers=(*kept, *added))

    def _parent(self, headers: Headers) -> Context | None:
        """The span that a record came from; None when its headers do not say, and a trace begins here."""
        found = _texts(headers)
        return self._propagator.extract(found) if found else None

    def _links(self, records: Sequence[Record]) -> list[Link]:
        links = []
        for record in records:
            parent = self._parent(record.headers)
            came_from = self._otel.get_current_span(parent).get_span_context() if parent is not None else None
            if came_from is not None and came_from.is_valid:
                links.append(self._otel.Link(came_from, {"messaging.kafka.offset": record.offset}))
            if len(links) >= _MOST_LINKS:
                break
        return links

    def _attributes(self, topic: str, name: str, kind: str, record: Record | NewRecord | None) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": topic,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
        }
        if record is not None:
            if record.value is None:
                attributes["messaging.kafka.message.tombstone"] = True
            else:
                attributes["messaging.message.body.size"] = len(record.value)
            if record.key is not None:
                attributes["messaging.kafka.message.key"] = record.key[:_LONGEST_KEY].decode(errors="replace")
        return attributes


class OpenTelemetryCall:
    """A `penstock.abc.TracedCall`: the span of one call of a handler."""

    __slots__ = ("_attempt", "_span", "_token", "_tracer")

    def __init__(self, tracer: OpenTelemetryTracer, span: Span, attempt: int) -> None:
        self._tracer = tracer
        self._span = span
        self._attempt = attempt
        self._token: Token[Context] | None = None

    def __enter__(self) -> Self:
        self._token = self._tracer.attach(self._span)
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            self._tracer.detach(self._token)
        self._span.end()

    def gave(self, record: NewRecord) -> NewRecord:
        return self._tracer.creating(record)

    def failed(self, error: BaseException, *, again: bool) -> None:
        if not again:
            self._tracer.fail(self._span, error)
            return
        self._span.record_exception(error)
        self._span.set_attribute("error.type", type(error).__qualname__)
        self._span.add_event("penstock.retry", {"penstock.attempt": self._attempt})


def _texts(headers: Headers) -> Mapping[str, str]:
    """The headers that may name a parent span. What is not text is ignored."""
    found = {}
    for name, data in headers:
        if name in TRACE_HEADERS and data is not None and data.isascii():
            found[name] = data.decode("ascii")
    return found
