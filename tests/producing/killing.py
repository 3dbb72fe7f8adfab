"""Orders for producers that are killed, and the count of what arrived."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from tests.prove.judging import judge_producers
from tests.servers import LAUNCHER, STOP_TIMEOUT_S
from tests.tidy.source import ROOT


class Factory:
    """Starts one producer after the other."""

    def __init__(self, process: subprocess.Popen[str], url: str, folder: Path, topics: Sequence[str]) -> None:
        self._process = process
        self._url = url
        self._folder = folder
        self._topics = topics
        self._runs = 0
        self._pid: int | None = None
        self.taken: set[tuple[int, int]] = set()
        """(run, number) of every record that a `send` has returned for."""
        self.sizes: dict[int, int] = {}

    @property
    def output(self) -> Path:
        return self._folder / "output.txt"

    def run(self, count: int, *, kill_after_s: float | None = None, **more: Any) -> int:
        """Let a producer send so many records; gives its exit code."""
        self._runs += 1
        self.sizes[self._runs] = count
        order = {
            "url": self._url,
            "spool": str(self._folder / "spool"),
            "topics": self._topics,
            "run": self._runs,
            "count": count,
            "output": str(self.output),
            **more,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        killer: threading.Timer | None = None
        code: int | None = None
        while code is None:
            line = json.loads(self._process.stdout.readline())
            if isinstance(line, int):
                self.taken.add((self._runs, line))
            elif "pid" in line:
                self._pid = line["pid"]
                if kill_after_s is not None:
                    killer = threading.Timer(kill_after_s, os.kill, (line["pid"], signal.SIGKILL))
                    killer.start()
            else:
                self._pid = None
                code = line["exit"]
        if killer is not None:
            killer.cancel()
        return code

    def kill(self) -> bool:
        """SIGKILL to the producer that another thread runs; gives whether there was one."""
        pid = self._pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
        return True

    def drain(self, **more: Any) -> None:
        """A producer that only delivers what the others have left behind."""
        assert self.run(0, **more) == 0, self.output.read_text(errors="replace")[-4000:]


@contextmanager
def factory(url: str, folder: Path, topics: Sequence[str]) -> Iterator[Factory]:
    command = [sys.executable, "-c", LAUNCHER, str(os.getpid()), sys.executable]
    command += ["-m", "tests.producing.killed_producer"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield Factory(process, url, folder, topics)
    finally:
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def arrived(stream: penstock.Connection, topics: Sequence[str]) -> dict[str, list[tuple[str, int, int]]]:
    """(key, run, number) of every record, for each topic, in the order of its one partition."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for topic in topics:
        found[topic] = []
        for record in stream.read(topic):
            run, number = (record.value or b"").split()
            found[topic].append(((record.key or b"").decode(), int(run), int(number)))
    return found


def check_exactly_once(made: Factory, records: dict[str, list[tuple[str, int, int]]]) -> None:
    """Nothing that was taken is missing, nothing is there twice, nothing is there that nobody sent, order per key."""
    judgement = judge_producers(made.taken, made.sizes, records)
    assert not judgement.broken
