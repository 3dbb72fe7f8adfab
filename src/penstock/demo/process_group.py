"""The processes of the demo, by their names: how each is started, and what it reports."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from penstock.demo.events import LETTERS
from penstock.demo.generator import GeneratorSettings
from penstock.demo.live import Live
from penstock.demo.processes import Process
from penstock.demo.settings import DemoSettings
from penstock.errors import JavaMissingError, PenstockError
from penstock.java.installed import find_java

LOOK_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that run. `advice` has a sentence for each wanted part that cannot."""

    spark: bool
    console: bool
    advice: list[str] = field(default_factory=list)


def parts_for(settings: DemoSettings) -> Parts:
    advice: list[str] = []
    spark = settings.with_spark and _can_run_spark(advice)
    console = settings.with_console and _has_packages(["nicegui"], "the console", "console", advice)
    return Parts(spark, console, advice)


def _can_run_spark(advice: list[str]) -> bool:
    if not _has_packages(["pyspark", "pyarrow", "pandas"], "the pipeline on Spark", "spark", advice):
        return False
    try:
        find_java()
    except JavaMissingError as error:
        advice.append(f"The pipeline on Spark is skipped. {error}")
        return False
    return True


def _has_packages(packages: list[str], what: str, extra: str, advice: list[str]) -> bool:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        advice.append(
            f"{what[0].upper()}{what[1:]} is skipped, as {', '.join(missing)} is not installed; "
            f"run: pip install 'penstock[{extra}]'"
        )
    return not missing


class Interruption:
    """Remembers the first signal. `pause` and `until` then raise KeyboardInterrupt or SystemExit."""

    def __init__(self) -> None:
        self._came: int | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Only record signals inside the block, so that cleaning up is not interrupted."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        if self._came == signal.SIGINT:
            raise KeyboardInterrupt
        if self._came is not None:
            raise SystemExit(128 + self._came)

    def pause(self, duration_s: float) -> None:
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left_s, LOOK_AGAIN_S))
        self.check()

    def until(self, is_so: Callable[[], bool], what: str, timeout_s: float, every_s: float = LOOK_AGAIN_S) -> None:
        """Wait for a condition. Raises PenstockError, naming `what`, when that takes too long."""
        until_s = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > until_s:
                raise PenstockError(f"{what}: not within {timeout_s:g} s. The machine is very busy, or something hangs")
            self.pause(every_s)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._came is None:
            self._came = number


START_TIMEOUT_S: Final = 120.0
CONSUMERS: Final = ("consumer 1", "consumer 2")
DRIVER_CORES: Final = 2

_LISTENING: Final = re.compile(r"penstock: listening on 127\.0\.0\.1:(?P<port>\d+)")
_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+\S*")


class ProcessGroup:
    """All processes. `end` leaves none running."""

    def __init__(self, folder: Path, live: Live, interruption: Interruption) -> None:
        self.data = folder / "data"
        self.url = f"log:{self.data}"
        self._folder = folder
        self._live = live
        self._interruption = interruption
        self._processes: dict[str, Process] = {}

    def __getitem__(self, name: str) -> Process:
        return self._processes[name]

    def __contains__(self, name: str) -> bool:
        return name in self._processes

    def check(self) -> None:
        """Raise PenstockError if a process that should run, or should have ended well, has not."""
        for process in self._processes.values():
            if process.name != "console":
                process.check()

    def start_broker(self) -> None:
        """Serve the folder, on the port of the first start; the broker listens when this returns."""
        live = self._live
        ports: list[int] = []

        def hear(said: dict[str, Any]) -> None:
            if found := _LISTENING.match(said.get("text", "")):
                ports.append(int(found["port"]))

        listen = f"127.0.0.1:{live.broker_port}"
        arguments = ("serve", "--data", str(self.data), "--listen", listen, "--log-level", "warning")
        broker = self._start("broker", "command", *arguments, hear=hear)

        def is_there() -> bool:
            broker.check()
            return bool(ports)

        self._interruption.until(is_there, "the broker listens", START_TIMEOUT_S)
        live.broker_port = ports[0]

    def start_consumer(self, name: str) -> None:
        self._start(name, "fraud", self.url, name.replace(" ", "-"), hear=self._live.listener_of(name))

    def start_generator(
        self, *, events: int | None, rate: int, seed: int, first: int = 0, fault: str | None = None
    ) -> None:
        settings = GeneratorSettings(url=self.url, events=events, rate=rate, seed=seed, first=first, fault=fault)
        text = msgspec.json.encode(settings).decode()
        self._start("generator", "generator", text, hear=self._live.hear_generator)

    def start_driver(self) -> None:
        self._live.forget_driver()
        self._start("driver", "use", self.url, str(DRIVER_CORES), hear=self._live.hear_driver)

    def start_console(self) -> None:
        """It reports its address when it listens; do not wait for it."""

        def hear(said: dict[str, Any]) -> None:
            found = _ADDRESS.search(said.get("text", ""))
            if found and self._live.console is None:
                self._live.console = found.group().rstrip(".,)")

        arguments = ("console", "--url", self.url, "--listen", "127.0.0.1:0", "--dead-letters", LETTERS)
        self._start("console", "command", *arguments, hear=hear)

    def lost_console(self) -> str | None:
        """The last output of the console, once, if it has ended. Nothing depends on it, so the demo continues."""
        console = self._processes.get("console")
        if console is None or console.exit_code is None:
            return None
        self.kill("console")
        return console.last_words().splitlines()[-1]

    def kill(self, name: str) -> int:
        """SIGKILL. Returns its process id."""
        process = self._processes.pop(name)
        process.kill()
        return process.pid

    def finish(self, name: str, timeout_s: float) -> None:
        """Ask it to finish its work, and wait for its end."""
        process = self._processes[name]
        process.ask_to_finish()

        def has_ended() -> bool:
            process.check()
            return process.exit_code == 0

        self._interruption.until(has_ended, f"{name} has finished", timeout_s)
        self.kill(name)  # the rest of its session, and the pipes to it

    def end(self) -> None:
        """Kill them all; the broker last, so that no client complains."""
        with contextlib.ExitStack() as stack:  # an error with one must not keep the others alive
            for name in sorted(self._processes, key=lambda name: name != "broker"):
                stack.callback(self.kill, name)

    def _start(self, name: str, role: str, *arguments: str, hear: Any) -> Process:
        output = self._folder / f"{name.replace(' ', '-')}.log"
        process = Process(name, role, *arguments, output=output, hear=hear, temporary=self._folder / "tmp")
        self._processes[name] = process
        return process
