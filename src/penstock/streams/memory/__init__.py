"""A stream in the memory of this process, for tests and for trying things out.

It keeps every promise of `penstock.abc.Stream` but durability: order, keys, headers, times, retention, waiting readers.
In come `MemoryStreams(...)` or a URL, `memory:NAME`, which leads to the same records wherever in the process it is
used. What it can do beyond a stream is to provoke what is rare elsewhere: `expire`, `skip`, `add_partitions`.
"""

from __future__ import annotations

from penstock.streams.memory.streams import MemoryStreams

__all__ = ["MemoryStreams"]
