"""For tests, ours and yours: parts that behave, and fail, as a script says.

Give them to the code under test in place of the real ones: `VirtualClock` for time, `MemoryStream` for a stream,
`FaultyDisk`, `FaultyTopicStream` and `FaultyStore` for what fails now and then, `CrashingStore` and
`CrashingTopicStream` for what dies at a named step, `TcpProxy` for a network that delays, cuts or hangs, `UdpProxy` for
one that loses, repeats and reorders. `run_to_end` runs an app in a test and returns the outcome of each record; pytest
finds the fixture `penstock_stream`. `conformance` has the suites that every backend passes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.streams.memory import MemoryStream
    from penstock.streams.memory.streams import MemoryTopicStream
    from penstock.testing.apps import RunResult, run_to_end
    from penstock.testing.clock import VirtualClock
    from penstock.testing.crashing import (
        CrashingLetters,
        CrashingStore,
        CrashingStream,
        CrashingTopicStream,
        CrashPoint,
    )
    from penstock.testing.faulty import (
        Fate,
        Faults,
        FaultyDisk,
        FaultyLetters,
        FaultyStore,
        FaultyStream,
        FaultyTopicStream,
        Operation,
        StreamFaults,
    )
    from penstock.testing.interception import InterceptedTopicStream, Interceptor
    from penstock.testing.tcp_proxy import TcpProxy
    from penstock.testing.udp_proxy import UdpProxy

_ROOMS = {
    "penstock.streams.memory": ("MemoryStream",),
    "penstock.streams.memory.streams": ("MemoryTopicStream",),
    "penstock.testing.apps": ("RunResult", "run_to_end"),
    "penstock.testing.clock": ("VirtualClock",),
    "penstock.testing.crashing": (
        "CrashingLetters",
        "CrashingStore",
        "CrashingTopicStream",
        "CrashingStream",
        "CrashPoint",
    ),
    "penstock.testing.faulty": (
        "Fate",
        "Faults",
        "FaultyDisk",
        "FaultyLetters",
        "FaultyStore",
        "FaultyTopicStream",
        "FaultyStream",
        "Operation",
        "StreamFaults",
    ),
    "penstock.testing.interception": ("InterceptedTopicStream", "Interceptor"),
    "penstock.testing.tcp_proxy": ("TcpProxy",),
    "penstock.testing.udp_proxy": ("UdpProxy",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "CrashPoint",
    "CrashingLetters",
    "CrashingStore",
    "CrashingTopicStream",
    "CrashingStream",
    "Fate",
    "Faults",
    "FaultyDisk",
    "FaultyLetters",
    "FaultyStore",
    "FaultyTopicStream",
    "FaultyStream",
    "InterceptedTopicStream",
    "Interceptor",
    "MemoryStream",
    "MemoryTopicStream",
    "Operation",
    "RunResult",
    "StreamFaults",
    "TcpProxy",
    "UdpProxy",
    "VirtualClock",
    "run_to_end",
]


def __getattr__(name: str) -> object:
    """Import a part when it is first used: pytest loads this package's plugin in every run."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
