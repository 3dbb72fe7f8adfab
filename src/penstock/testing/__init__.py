"""For tests, ours and yours: parts that behave, and that break, as they are told to.

What comes in is a script of faults, or of the time that passes; what goes out is a part that can be given to the code
under test in place of the real one: `VirtualClock` for time, `MemoryStreams` for a stream, `FaultyDisk`, `FaultyStream`
and `FaultyStore` for what fails now and then, `CrashingStore` and `CrashingStream` for what dies at a named step.
`conformance` has the suites that every backend passes.
"""

from __future__ import annotations

from penstock.streams.memory import MemoryStreams
from penstock.testing.clock import VirtualClock
from penstock.testing.crashing import CrashingLetters, CrashingStore, CrashingStream, CrashingStreams, CrashPoint
from penstock.testing.faults import FaultyDisk, Operation
from penstock.testing.faulty import Fate, FaultyLetters, FaultyStore, FaultyStream, FaultyStreams, StreamFaults
from penstock.testing.script import Faults

__all__ = [
    "CrashPoint",
    "CrashingLetters",
    "CrashingStore",
    "CrashingStream",
    "CrashingStreams",
    "Fate",
    "Faults",
    "FaultyDisk",
    "FaultyLetters",
    "FaultyStore",
    "FaultyStream",
    "FaultyStreams",
    "MemoryStreams",
    "Operation",
    "StreamFaults",
    "VirtualClock",
]
