"""The root of the command: its nouns, and how errors are reported.

Exit codes: 0 done, 1 an error (one sentence on standard error says what to do), 2 wrong usage, 130 interrupted,
143 terminated. A closed output pipe, as after `head`, is not an error.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from penstock import __version__
from penstock.cli.output import say
from penstock.errors import PenstockError

EXIT_CODES = "Exit codes: 0 done, 1 an error, 2 wrong usage, 130 interrupted, 143 terminated."

COMMANDS: Final = {
    "demo": "Run everything for about two minutes.",
    "init": "Create a starter project: an app, a pipeline, and their tests.",
    "doctor": "Check Python, Java, extras, ports and disk, and say what to fix.",
    "serve": "Serve the log in a folder to every Kafka client, until stopped.",
    "console": "Show the stream in the browser.",
    "topics": "List, create, describe, alter and delete topics.",
    "sql": "Query topics with SQL.",
    "produce": "Send each line of the input as a record.",
    "consume": "Read the records of topics, once or continuously.",
    "groups": "List, describe, reset and delete groups.",
    "lag": "Show the lag of groups.",
    "dlq": "List, show, count, redrive and discard dead letters.",
    "alerts": "List, add, remove and mute rules; check, or watch and notify.",
    "metrics": "Serve lag, dead letters and pipelines of a stream to Prometheus.",
    "run": "Run the apps or pipelines of a program.",
    "up": "Run apps and pipelines together, and restart those that die.",
    "gateway": "Carry records from one system to another.",
    "webhooks": "Register, list and remove the receivers of a webhooks: file.",
    "outbox": "Deliver the events of an outbox, in their database, to a stream.",
    "cdc": "Capture the rows and changes of a database into topics.",
    "pipelines": "Show the state of pipelines; compare, switch, retire versions.",
    "spark": "Fetch what Spark pipelines need, and make them start faster.",
    "asyncapi": "Print the AsyncAPI 3.0 document of an app.",
    "plan": "Answer capacity questions, each with its arithmetic.",
    "cluster": "Run a real Kafka of several brokers, break it, and drill what happens.",
    "prove": "Kill processes on purpose, and count what was lost and repeated.",
}
"""The commands in the order in which a newcomer needs them, with the line that `penstock --help` shows. Each is the
`app` of the module of its name in `penstock.cli.commands`, which is imported when the command is used."""
FOLDERS: Final = {"gateway": "gateways.", "outbox": "gateways.", "webhooks": "gateways."}
"""The folder, within `commands`, of the module of a command that shares code with others."""


class Commands(Mapping[str, Any]):
    """The commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@functools.cache
def _command(name: str) -> Any:
    alone = typer.Typer(rich_markup_mode=None)
    alone.add_typer(importlib.import_module(f"penstock.cli.commands.{FOLDERS.get(name, '')}{name}").app)
    return typer.main.get_group(alone).commands[name]


class Root(TyperGroup):
    """The command as a whole. Reports errors that users can solve as one sentence."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the names of the commands without importing them."""
        self.commands = {name: TyperCommand(name, help=line) for name, line in COMMANDS.items()}
        return super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: Any) -> Any:
        signal.signal(signal.SIGTERM, _terminated)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except PenstockError as error:
            say(f"penstock: {error}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None
        except BrokenPipeError:
            # The buffered output has nowhere to go; Python would complain about it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


def _terminated(number: int, _: FrameType | None) -> None:
    """Exit by an exception, so that everything that was opened is closed."""
    raise SystemExit(128 + number)


app = typer.Typer(
    name="penstock",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help takes half the time, as nothing is loaded to draw boxes.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=f"The stream: --url, else $PENSTOCK_URL, else kafka://127.0.0.1:9092. {EXIT_CODES}",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Carry events: produce them, keep them, consume them."""


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        # kio imports hypothesis where it is installed, for its own tests: a quarter of a second.
        sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    app()
