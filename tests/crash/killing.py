"""Killing a broker again and again while it works, and starting it again at once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tests.servers import STOP_TIMEOUT_S, Penstock

FLOW_TIMEOUT_S = 30.0


class Work(Protocol):
    """Something that goes on while the broker is killed."""

    @property
    def progress(self) -> int:
        """Grows with everything that the broker acknowledges."""

    def check_health(self) -> None:
        """Raise what went wrong, if something did."""


def wait_for_flow(work: Sequence[Work], more: int, timeout_s: float = FLOW_TIMEOUT_S) -> None:
    """Return once each of the workers has got so much further."""
    goals = [worker.progress + more for worker in work]
    deadline = time.monotonic() + timeout_s
    while any(worker.progress < goal for worker, goal in zip(work, goals, strict=True)):
        for worker in work:
            worker.check_health()
        left = [f"{worker}: {worker.progress} of {goal}" for worker, goal in zip(work, goals, strict=True)]
        assert time.monotonic() < deadline, f"the work has come to a halt: {left}"
        time.sleep(0.005)


def kill_again_and_again(
    server: Penstock,
    rng: random.Random,
    work: Sequence[Work],
    kills: int,
    *,
    longest_pause_s: float = 0.6,
    restarted: Callable[[], None] = lambda: None,
) -> None:
    """Let the work flow, kill the broker a random while later, start it again; `restarted` looks at it each time.

    One in four starts is killed too, at a random moment: a crash while it recovers from a crash.
    """
    for _ in range(kills):
        wait_for_flow(work, rng.randint(1, 20))
        wait_a_while(rng.uniform(0.0, longest_pause_s), timeout_s=longest_pause_s)
        server.kill()
        if rng.random() < 0.25:
            start_and_kill(server, after_s=rng.uniform(0.0, 0.5))
        server.start()
        restarted()
    wait_for_flow(work, 1)


def wait_a_while(pause_s: float, timeout_s: float) -> None:
    """Only to make the moment of the kill a random one: nothing is waited for."""
    time.sleep(min(pause_s, timeout_s))


def start_and_kill(server: Penstock, after_s: float) -> None:
    """Start a broker on the folder, and kill it before or after it is ready, whichever it happens to be."""
    listen = ("--listen", f"127.0.0.1:{server.port}", "--data", str(server.data))
    command = [sys.executable, "-m", "penstock.cli", "serve", *listen, *server.arguments]
    doomed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        code = doomed.wait(after_s)
        raise AssertionError(f"the broker ended by itself with code {code} when it was started after a kill")
    except subprocess.TimeoutExpired:
        pass
    finally:
        doomed.kill()
        doomed.wait(STOP_TIMEOUT_S)
