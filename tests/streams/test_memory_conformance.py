"""Memory keeps the promises of a stream."""

from __future__ import annotations

from penstock.testing import MemoryStream, conformance

TestMemoryStreams = conformance.stream(MemoryStream, expire=MemoryStream.expire)
