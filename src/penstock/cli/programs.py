"""Running a program of a user as Python itself would: as `__main__`, with its own arguments and its folder first."""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

import typer

from penstock.errors import ConfigError, PenstockError


def run_program(file: Path, arguments: Sequence[str]) -> None:
    """Run it to its end. It stays `__main__` afterwards: types and functions that it has made are looked up there.

    Errors of ours are raised as they are; any other is shown with the program's own lines, and ends the command.
    """
    try:
        source = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    module = types.ModuleType("__main__")
    module.__file__ = str(file)
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.parent))
    sys.modules["__main__"] = module
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except PenstockError:
        raise
    except Exception as error:
        show(error, file)
        raise typer.Exit(1) from error


def show(error: BaseException, file: Path) -> None:
    """Its traceback, from the first line of the program on: what led there is of no use to whoever wrote it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(file):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
