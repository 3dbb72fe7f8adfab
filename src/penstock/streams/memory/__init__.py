"""A stream in the memory of this process, for tests and for trying things out.

It has all of `penstock.abc.Stream` but durability: order, keys, headers, times, retention, waiting readers. Open it
with `MemoryStream(...)`, or by a URL, `memory:NAME`, which has the same records in the whole process. With `expire`,
`skip` and `add_partitions`, tests can provoke what is rare elsewhere.
"""

from __future__ import annotations

from penstock.streams.memory.streams import MemoryStream

__all__ = ["MemoryStream"]
