"""Running the `penstock` command as its users do: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TIMEOUT_S: Final = 60.0
COMMAND: Final = (sys.executable, "-m", "penstock.cli")


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.split("\n") if line]

    @property
    def table(self) -> list[list[str]]:
        """The rows of a table whose cells are single words, without its head."""
        return [line.split() for line in self.out.splitlines()[1:]]


class Command:
    """`penstock`, with the stream that it is to use."""

    def __init__(self, url: str) -> None:
        self.environment: Mapping[str, str] = {**os.environ, "PENSTOCK_URL": url, "COLUMNS": "100"}

    def __call__(self, *arguments: str, given: str | bytes = b"") -> Done:
        """Run it to its end, whatever that is."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=given.encode() if isinstance(given, str) else given,
            capture_output=True,
            env=self.environment,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def well(self, *arguments: str, given: str | bytes = b"") -> Done:
        """Run it, and expect that it goes well."""
        done = self(*arguments, given=given)
        assert done.code == 0, f"penstock {' '.join(arguments)} ended with {done.code}:\n{done.out}\n{done.err}"
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it, for tests that talk to it or end it."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            text=True,
            errors="replace",  # librdkafka logs whatever bytes it has in hand
        )
