"""A process that holds a place of dead letters until it is killed: `python -m ... SPEC URL`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import penstock
from penstock.dead_letters import open_dead_letters
from penstock.dead_letters.holding import hold_of
from penstock.model.clock import SystemClock


@contextlib.contextmanager
def holder_process(spec: str, url: str = "memory:") -> Iterator[subprocess.Popen[str]]:
    """It holds the place when this is entered."""
    command = [sys.executable, "-m", __name__, spec, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    with penstock.connect(sys.argv[2]) as streams:
        hold = hold_of(open_dead_letters(sys.argv[1], streams), "the other process", 0.0, SystemClock())
        print("held", flush=True)
        signal.pause()
        hold.release()
