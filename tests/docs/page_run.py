"""Running the blocks of one page, in order, as a reader who types them would: in one folder, one Python, one shell."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, Self

import yaml

from tests.clients.waiting import eventually
from tests.docs.blocks import PYTHON, ROOT, SHELL, Block
from tests.docs.shell_lines import Kind, commands_of, complaint_about, pieces
from tests.servers import LAUNCHER, free_ports

TIMEOUT_S: Final = 100.0
READY: Final = re.compile(r"listening on|https?://")
ON_LOOPBACK: Final = re.compile(r"(?:127\.0\.0\.1|localhost):(\d{4,5})\b")
Replacements = dict[str, str]


class PageFailed(Exception):
    """A block did not work; the message names it, and says what it did."""


class PageRun:
    """A page that is being run. `replace` has what the page names and the machine has elsewhere, such as a server."""

    def __init__(self, folder: Path, replace: Replacements, main: ModuleType) -> None:
        self.folder = folder
        self.main = main
        self._replace = replace
        self._ports: dict[str, str] = {}
        self._started: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self._where = folder
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "110",
        }
        self.environment.pop("PENSTOCK_URL", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._started:
            self._stop_last(check=kind is None)

    def run(self, block: Block) -> None:
        """PageFailed, or whatever a Python block raises, if it does not work."""
        text = self._for_here(block.text)
        if block.file is not None:
            file = self.folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        elif block.language in PYTHON:
            self._run_python(block, text)
        elif block.language in SHELL:
            self._run_shell(block, commands_of(block.language, text))

    def _for_here(self, text: str) -> str:
        for name, here in self._replace.items():
            text = text.replace(name, here)
        for port in ON_LOOPBACK.findall(text):
            if port not in self._ports and port not in self._ports.values() and self._is_named_by_the_page(port):
                self._ports[port] = str(free_ports(1)[0])
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text

    def _is_named_by_the_page(self, port: str) -> bool:
        return not any(port in here for here in self._replace.values())

    def _run_python(self, block: Block, text: str) -> None:
        """In the namespace of the page; with the lines of the page, so that what it raises points into the page."""
        known = set(vars(self.main))
        code = compile("\n" * (block.line - 1) + text, str(ROOT / block.page), "exec", dont_inherit=True)
        exec(code, vars(self.main))
        for name in vars(self.main).keys() - known:
            function: Callable[[], object] = vars(self.main)[name]
            if name.startswith("test_") and callable(function) and not inspect.signature(function).parameters:
                function()

    def _run_shell(self, block: Block, text: str) -> None:
        for piece in pieces(text):
            match piece.kind:
                case Kind.LOOK:
                    wrong = complaint_about(piece.text)
                    if wrong:
                        raise PageFailed(f"{block.place}: {piece.text}: {wrong}")
                case Kind.START:
                    self._start(block, piece.text)
                case Kind.STOP:
                    self._stop_last(check=True)
                case Kind.RUN:
                    self.run_commands(block, piece.text)

    def run_commands(self, block: Block, text: str) -> None:
        """With the folder and the exports that the lines before have left, as in one terminal."""
        left = self.folder / ".shell-left"
        script = f"trap '{{ pwd; env -0; }} > {left}' EXIT\n{text}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self._where,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise PageFailed(f"{block.place} ended with {done.returncode}:\n{text}\n{done.stdout}\n{done.stderr}")
        sys.stdout.write(done.stdout)
        where, _, variables = left.read_text("utf-8", errors="replace").partition("\n")
        self._where = Path(where)
        for pair in variables.split("\0"):
            name, is_one, value = pair.partition("=")
            if is_one:
                self.environment[name] = value
        left.unlink()

    def _start(self, block: Block, text: str) -> None:
        """Start something that serves, and go on when it says where."""
        output = self.folder / f".started-{len(self._started)}"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, str(os.getpid()), "bash", "-c", f"exec {text}"],
                cwd=self._where,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        self._started.append((f"{block.place}: {text}", process, output))

        def is_ready() -> bool:
            said = output.read_text("utf-8", errors="replace")
            if process.poll() is not None:
                raise PageFailed(f"{block.place}: {text} ended with {process.returncode}:\n{said}")
            return READY.search(said) is not None

        eventually(f"{block.place}: {text} says where it listens", is_ready, 60.0)

    def _stop_last(self, *, check: bool) -> None:
        what, process, output = self._started.pop()
        process.terminate()
        try:
            code = process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait(20)
        if check and code not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
            raise PageFailed(f"{what} ended with {code}:\n{output.read_text('utf-8', errors='replace')}")


def check_data(block: Block) -> None:
    """Whether a block of data is such data."""
    read: dict[str, Callable[[str], object]] = {
        "json": json.loads,
        "toml": tomllib.loads,
        "yaml": yaml.safe_load,
    }
    try:
        read[block.language](block.text)
    except ValueError as error:
        raise PageFailed(f"{block.place} is no {block.language}: {error}") from error
    except yaml.YAMLError as error:
        raise PageFailed(f"{block.place} is no {block.language}: {error}") from error
