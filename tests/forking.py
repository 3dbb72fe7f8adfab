"""Processes for tests to kill, each forked from one that has loaded what they need and has started nothing.

`multiprocessing` keeps one such server in a process of pytest, and has it load, when it starts, what was asked for
last. So everything is asked for here, once: a process whose modules were not loaded beforehand spends a third of a
second on loading them, and most kills at random moments would hit nothing else.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Final

LOADED: Final = (
    "confluent_kafka.admin",
    "penstock.streams",
    "psycopg",
    "tests.dead_letters.killed_redrive",
    "tests.consuming.queue_worker",
    "tests.consuming.stream_queue_worker",
    "tests.crash.dying_app",
    "tests.crash.dying_consumer",
    "tests.crash.killed_by_a_record",
    "tests.peers.dying_handlers",
    "tests.prove.victims",
)
FORKING: Final[ForkServerContext] = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(list(LOADED))
