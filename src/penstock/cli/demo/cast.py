"""The processes of the demo, by their parts: who is started how, and what is heard of them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.cli.demo.events import LETTERS
from penstock.cli.demo.generator import GeneratorSettings
from penstock.cli.demo.interruption import Interruption
from penstock.cli.demo.live import Live
from penstock.cli.demo.processes import Process

START_TIMEOUT_S: Final = 120.0
CONSUMERS: Final = ("consumer 1", "consumer 2")
DRIVER_CORES: Final = 2

_LISTENING: Final = re.compile(r"penstock: listening on 127\.0\.0\.1:(?P<port>\d+)")
_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+\S*")


class Cast:
    """All processes that there are. `end` leaves none."""

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
        """PenstockError if one that should run, or should have ended well, has not."""
        for process in self._processes.values():
            if process.name != "console":
                process.check()

    def start_broker(self) -> None:
        """Serve the folder, on the port of the first start; it listens when this returns."""
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
        """It tells its address when it is there, which nobody waits for."""

        def hear(said: dict[str, Any]) -> None:
            found = _ADDRESS.search(said.get("text", ""))
            if found and self._live.console is None:
                self._live.console = found.group().rstrip(".,)")

        arguments = ("console", "--url", self.url, "--listen", "127.0.0.1:0", "--dead-letters", LETTERS)
        self._start("console", "command", *arguments, hear=hear)

    def lost_console(self) -> str | None:
        """What the console last said, if it has ended, told once. Nothing else depends on it, so the demo goes on."""
        console = self._processes.get("console")
        if console is None or console.exit_code is None:
            return None
        self.kill("console")
        return console.last_words().splitlines()[-1]

    def kill(self, name: str) -> int:
        """SIGKILL. Its process id is told, for people."""
        process = self._processes.pop(name)
        process.kill()
        return process.pid

    def finish(self, name: str, timeout_s: float) -> None:
        """Have it bring its work to a good end, and wait for that."""
        process = self._processes[name]
        process.ask_to_finish()

        def has_ended() -> bool:
            process.check()
            return process.exit_code == 0

        self._interruption.until(has_ended, f"{name} has finished", timeout_s)
        self.kill(name)  # what is left of its session, and the pipes to it

    def end(self) -> None:
        """Kill them all; the broker last, so that nobody complains that it is gone."""
        with contextlib.ExitStack() as stack:  # what goes wrong with one keeps none of the others
            for name in sorted(self._processes, key=lambda name: name != "broker"):
                stack.callback(self.kill, name)

    def _start(self, name: str, role: str, *arguments: str, hear: Any) -> Process:
        output = self._folder / f"{name.replace(' ', '-')}.log"
        process = Process(name, role, *arguments, output=output, hear=hear, temporary=self._folder / "tmp")
        self._processes[name] = process
        return process
