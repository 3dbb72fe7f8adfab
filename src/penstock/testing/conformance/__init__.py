"""Suites that every backend of one kind passes, ours and yours.

    from penstock.testing import conformance
    TestMyStream = conformance.stream(open_my_streams)     # in a module of tests: pytest finds the cases in it

Input: a function that opens the backend. Output: a class of test cases. They check what the docstrings in
`penstock.abc` promise, as far as the backend's features go, and kill processes that use it, to see what survives. See
`suite` for how to write a suite.
"""

from __future__ import annotations

from penstock.testing.conformance.buffers import buffer
from penstock.testing.conformance.channels import channel, port_to_bind, port_to_connect
from penstock.testing.conformance.checkpoints import checkpoint_store
from penstock.testing.conformance.letters import dead_letters
from penstock.testing.conformance.queue import queue
from penstock.testing.conformance.streams import stream

__all__ = [
    "buffer",
    "channel",
    "checkpoint_store",
    "dead_letters",
    "port_to_bind",
    "port_to_connect",
    "queue",
    "stream",
]
