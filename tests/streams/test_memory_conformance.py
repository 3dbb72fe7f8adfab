"""Memory keeps the promises of a stream."""

from __future__ import annotations

from penstock.testing import MemoryStreams, conformance

TestMemoryStreams = conformance.stream(MemoryStreams, expire=MemoryStreams.expire)
