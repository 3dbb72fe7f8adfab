"""The `penstock` command in a process that is forked from one which has loaded it: all of `Command` but its start.

Most tests ask for what a command says and does, hundreds of times in all. That it starts from nothing, loads what it
needs and no more, and is interrupted in good order, is for those that use `Command` itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

import confluent_kafka.admin  # noqa: F401  loaded for all that are forked, as the others are
import psycopg  # noqa: F401

import penstock.cli.programs
import penstock.producing.producer
import penstock.streams.kafka.administration.groups  # noqa: F401
from penstock.cli.main import COMMANDS, Commands, main
from penstock.testing.conformance.child import Child, Parent
from tests.cli.running import TIMEOUT_S, Command, Done

STREAMS: Final = (("given", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT))
"""The files in place of standard input, output and error."""
LOADED: Final = {name: Commands()[name] for name in COMMANDS if name != "sql"}
"""Commands that are imported once for all that are forked. Not `sql`: DuckDB complains at the end of a process that was
forked from one that had loaded it."""


class ForkedCommand(Command):
    def __call__(self, *arguments: str, given: str | bytes = b"") -> Done:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "given").write_bytes(given.encode() if isinstance(given, str) else given)
            with Child(Nothing, run_command, list(arguments), dict(self.environment), folder) as child:
                (code,) = child.wait_until_done(TIMEOUT_S)
            return Done(code, (folder / "out").read_bytes().decode(), (folder / "err").read_bytes().decode())


class Nothing:
    """A command needs no backend."""

    def close(self) -> None: ...


def run_command(_: Nothing, parent: Parent, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    """Be the command, and tell the exit code."""
    os.environ.clear()
    os.environ.update(environment)
    for number, (name, flags) in enumerate(STREAMS):
        file = os.open(folder / name, flags)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["penstock", *arguments]
    parent.send(exit_code())


def exit_code() -> int:
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, int) or ended.code is None:
            return ended.code or 0
        print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    return 1
