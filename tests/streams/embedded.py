"""Folders whose brokers are started by their clients, and clients in processes of their own, for tests to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.broker import last_address
from penstock.streams.embedded.finding import is_owned, owner_pid
from tests.clients.waiting import eventually

IDLE_S: Final = 1.0
"""After how long without a client the brokers of these tests end."""

CLIENT: Final = """
import sys, penstock
with penstock.connect(sys.argv[1], exit_when_idle_s=float(sys.argv[2])) as stream:
    stream.send("greetings", sys.argv[3]).result(30)
    print(stream.bootstrap, flush=True)
    sys.stdin.read()
"""
"""A client that sends one record, says where the broker is, and stays until its input ends."""


def url(folder: Path) -> str:
    return f"log:{folder}"


def start_client(folder: Path, word: str = "hello", idle_s: float = IDLE_S) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, url(folder), str(idle_s), word],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def client(folder: Path, word: str = "hello", idle_s: float = IDLE_S) -> Iterator[subprocess.Popen[str]]:
    """A client that has sent its record. It is ended with the block, if the test has not done so."""
    process = start_client(folder, word, idle_s)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), f"the client ended with {process.wait(10)}"
        yield process
    finally:
        process.kill()
        process.communicate()


def broker_pid(folder: Path) -> int:
    """The process of the broker that owns the folder."""
    assert is_owned(folder), f"nobody serves {folder}"
    pid = owner_pid(folder)
    assert pid is not None
    return pid


def kill_broker(folder: Path) -> int:
    """SIGKILL to the folder's broker; answers what its process was, once it is gone."""
    pid = broker_pid(folder)
    os.kill(pid, signal.SIGKILL)
    eventually("the killed broker lets go of its folder", lambda: not is_owned(folder))
    return pid


def stop_broker(folder: Path) -> None:
    """End the folder's broker, if it has one. A test leaves nothing running."""
    if is_owned(folder):
        os.kill(broker_pid(folder), signal.SIGTERM)
    eventually("the broker ends", lambda: not is_owned(folder))


def wait_until_idle_broker_ends(folder: Path, timeout_s: float = 20.0) -> None:
    eventually("the broker ends by itself", lambda: not is_owned(folder), timeout_s)
    eventually("it takes its address away", lambda: last_address(folder) is None, timeout_s)
