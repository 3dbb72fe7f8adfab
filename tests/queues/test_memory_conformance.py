"""A queue in memory keeps the promises of a queue."""

from __future__ import annotations

import functools

from penstock.queues import MemoryQueue
from penstock.testing import conformance

TestMemoryQueue = conformance.queue(functools.partial(MemoryQueue, 2.0), visibility_s=2.0)
