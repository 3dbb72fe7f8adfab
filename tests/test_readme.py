"""What the README shows is run as it stands: in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests import real_parts
from tests.clients.waiting import eventually
from tests.servers import free_ports
from tests.streams.embedded import stop_broker

ROOT: Final = Path(__file__).parents[1]
README: Final = (ROOT / "README.md").read_text("utf-8")
FENCE: Final = re.compile(r"^```(?P<mark>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PORT: Final = "9092"
TIMEOUT_S: Final = 120.0
NOT_RUN: Final = "not-run:"
RUN: Final = ("python", "bash")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    why_not: str
    """Why it is not run; empty for those that are."""
    text: str


def blocks() -> Iterator[Block]:
    for fence in FENCE.finditer(README):
        language, _, rest = fence["mark"].partition(" ")
        yield Block(language, rest.removeprefix(NOT_RUN).strip(), fence["text"])


def test_every_block_says_what_it_is() -> None:
    for block in blocks():
        assert block.language in (*RUN, "text"), f"a block of {block.language!r} is neither run nor plain text"
    assert {block.language for block in blocks() if not block.why_not} >= set(RUN)


def test_everything_that_the_readme_shows_works(tmp_path: Path) -> None:
    if "kcat" in README:
        real_parts.kcat()
    (port,) = free_ports(1)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("PENSTOCK_URL", None)
    with ExitStack() as stack:
        stack.callback(stop_broker, tmp_path / "data")
        for block in blocks():
            if block.language in RUN and not block.why_not:
                text = block.text.replace(PORT, str(port))
                if text.rstrip().endswith("&"):
                    run_in_background(text.rstrip().removesuffix("&"), tmp_path, environment, stack)
                else:
                    check_runs(block.language, text, tmp_path, environment)


def check_runs(language: str, text: str, folder: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"this ended with {done.returncode}:\n{text}\n{done.stdout}\n{done.stderr}"
    assert done.stdout, f"this said nothing:\n{text}\n{done.stderr}"


def run_in_background(text: str, folder: Path, environment: dict[str, str], stack: ExitStack) -> None:
    """Start a server, and go on when it says that it listens."""
    output = folder / "server.txt"
    with output.open("wb") as sink:
        server = subprocess.Popen(["bash", "-c", f"exec {text}"], cwd=folder, env=environment, stdout=sink)
    stack.callback(server.wait, TIMEOUT_S)
    stack.callback(server.terminate)
    eventually("the server listens", lambda: "listening on" in output.read_text("utf-8"))


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", README))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
