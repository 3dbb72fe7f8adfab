"""The suite for streams: pass a function that opens yours, and get a class of tests."""

from __future__ import annotations

from collections.abc import Callable

from penstock.abc import Features, Stream
from penstock.testing.conformance.outages import Outage
from penstock.testing.conformance.streams.appending import AppendingCases, StreamCrashCases
from penstock.testing.conformance.streams.feeding import FeedingCases
from penstock.testing.conformance.streams.groups import GroupCases
from penstock.testing.conformance.streams.outages import StreamOutageCases
from penstock.testing.conformance.streams.reading import ReadingCases
from penstock.testing.conformance.streams.suite import Expire
from penstock.testing.conformance.suite import Factory, collect


class StreamCases(ReadingCases, AppendingCases, FeedingCases, GroupCases, StreamCrashCases, StreamOutageCases):
    """What every stream promises: order, reading again, receipts, groups if it has any, and what survives a kill."""


def stream(
    factory: Factory[Stream],
    features: Features | None = None,
    *,
    expire: Expire | None = None,
    outage: Callable[[], Outage] | None = None,
    longest_backoff_s: float | None = None,
) -> type[StreamCases]:
    """The cases for a stream. `factory` opens it.

    `features` are those that it declares itself, unless given. `expire(stream, topic, partition, before)` removes the
    records before a pointer, as retention does; without it, the cases about expired records are skipped.
    `outage()` returns the server that the factory's stream connects to, through a `TcpProxy`; without it, the cases
    that kill the server and break the network are skipped. `longest_backoff_s` is the longest pause between two
    attempts to reconnect: the stream must work again within a few of them.
    """
    cases = collect(StreamCases, factory, features)
    cases.expire = staticmethod(expire) if expire is not None else None
    cases.make_outage = staticmethod(outage) if outage is not None else None
    cases.longest_backoff_s = longest_backoff_s
    return cases
