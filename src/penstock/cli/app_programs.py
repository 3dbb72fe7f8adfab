"""Run a user's program as Python itself would, as `__main__` with its own arguments, and then its apps."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from penstock.app import App, defined_apps
from penstock.cli.output import print_traceback
from penstock.errors import ConfigError, PenstockError
from penstock.model.stop_signals import on_stop_signals

if TYPE_CHECKING:
    from penstock.lakes.sink import LakeSink

logger = logging.getLogger(__name__)

NOTHING_DEFINED: Final = (
    "{} defines no pipeline and no app: create one with penstock.spark.Pipeline, penstock.App or "
    "penstock.lakes.LakeSink, and keep it in a variable"
)
_LOOK_S: Final = 0.1


def run_app_file(file: Path, arguments: Sequence[str]) -> None:
    """Run a program without Spark, and then its apps, unless it has run some itself."""
    run_program(file, arguments)
    waiting = unstarted_apps()
    if waiting:
        run_apps(waiting)
    elif not apps_and_sinks():
        raise ConfigError(NOTHING_DEFINED.format(file.name))


def apps_and_sinks() -> list[App | LakeSink]:
    """The apps that the program has defined, and its sinks into lake tables, whose packages it has imported then."""
    sinks = sys.modules.get("penstock.lakes.sink")
    return [*defined_apps(), *([] if sinks is None else sinks.defined_sinks())]


def unstarted_apps() -> list[App | LakeSink]:
    """What the program has defined; nothing when it has run one itself, as then it knows what to run."""
    apps = apps_and_sinks()
    return [] if any(app.started for app in apps) else apps


def run_apps(apps: Sequence[App | LakeSink]) -> None:
    """Run apps until all have ended, or SIGTERM or Ctrl-C arrives. When one fails, the others are stopped."""
    if len(apps) == 1:
        apps[0].run()
        return
    failures: list[BaseException] = []

    def run(app: App | LakeSink) -> None:
        try:
            app.run()
        except BaseException as error:
            if failures:
                logger.error("the app of group %s ended, too: %s", app.group, error)
            failures.append(error)

    threads = [threading.Thread(target=run, args=(app,), name=f"penstock-app-{app.group}") for app in apps]
    stopped = threading.Event()

    def stop(number: signal.Signals) -> None:
        logger.info("%s: waiting for running handlers", number.name)
        stopped.set()

    with on_stop_signals(stop):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if stopped.is_set() or failures:
                for app in apps:
                    app.stop()
            for thread in threads:
                thread.join(_LOOK_S / len(threads))
    if failures:
        raise failures[0]


def run_program(file: Path, arguments: Sequence[str]) -> None:
    """Run it to its end. It stays `__main__` afterwards, where its types and functions are looked up.

    Penstock's errors are raised; any other is shown with the program's own lines, and ends the command.
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
        print_traceback(error, file)
        raise typer.Exit(1) from error
