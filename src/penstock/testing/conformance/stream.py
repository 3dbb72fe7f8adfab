"""The suite for streams."""

from __future__ import annotations

from penstock.abc import Features, Streams
from penstock.testing.conformance.stream_appending import AppendingCases
from penstock.testing.conformance.stream_crashes import CrashCases
from penstock.testing.conformance.stream_feeding import FeedingCases
from penstock.testing.conformance.stream_groups import GroupCases
from penstock.testing.conformance.stream_reading import ReadingCases
from penstock.testing.conformance.stream_suite import Expire
from penstock.testing.conformance.suite import Factory, collect


class StreamCases(ReadingCases, AppendingCases, FeedingCases, GroupCases, CrashCases):
    """What every stream promises: order, reading again, receipts, groups if it has any, what is left after a kill."""


def stream(
    factory: Factory[Streams], features: Features | None = None, *, expire: Expire | None = None
) -> type[StreamCases]:
    """The cases for a system of streams. `factory` opens it.

    `features` are those that it declares itself, unless given. `expire(streams, topic, partition, before)` removes the
    records before a pointer, as retention does; without it, the cases about expired records are skipped.
    """
    cases = collect(StreamCases, factory, features)
    cases.expire = staticmethod(expire) if expire is not None else None
    return cases
