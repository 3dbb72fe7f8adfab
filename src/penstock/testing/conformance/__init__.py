"""Suites that every backend of one kind passes, ours and yours.

    from penstock.testing import conformance
    TestMyStream = conformance.stream(open_my_streams)     # in a module of tests: pytest finds the cases in it

Input: a function that opens the backend. Output: a class of test cases. They check what the docstrings in
`penstock.abc` promise, as far as the backend's features go, and kill processes that use it, to see what survives. See
`suite` for how to write a suite.
"""

from __future__ import annotations

from penstock.testing.conformance.buffers import BufferCases, buffer
from penstock.testing.conformance.channels import ChannelCases, channel, port_to_bind, port_to_connect
from penstock.testing.conformance.channels.suite import Message, NumberOf
from penstock.testing.conformance.checkpoints import CheckpointStoreCases, checkpoint_store
from penstock.testing.conformance.checkpoints.samples import Spoil
from penstock.testing.conformance.letters import DeadLetterCases, dead_letters
from penstock.testing.conformance.outages import Outage
from penstock.testing.conformance.queue import QueueCases, queue
from penstock.testing.conformance.streams import StreamCases, stream
from penstock.testing.conformance.streams.suite import Expire
from penstock.testing.conformance.suite import Factory

__all__ = [
    "BufferCases",
    "ChannelCases",
    "CheckpointStoreCases",
    "DeadLetterCases",
    "Expire",
    "Factory",
    "Message",
    "NumberOf",
    "Outage",
    "QueueCases",
    "Spoil",
    "StreamCases",
    "buffer",
    "channel",
    "checkpoint_store",
    "dead_letters",
    "port_to_bind",
    "port_to_connect",
    "queue",
    "stream",
]
