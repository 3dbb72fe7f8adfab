"""For tests, ours and yours: parts that break when and as they are told to.

What comes in is a script of faults, what goes out is a part that can be given to the code under test in place of the
real one: `FaultyDisk` for a disk that is full, broken or slow to admit it.
"""

from __future__ import annotations

from penstock.testing.faults import FaultyDisk, Operation

__all__ = ["FaultyDisk", "Operation"]
