"""The root of the command: its nouns, and what becomes of errors.

Exit codes: 0 done, 1 an error (one sentence on standard error says what to do), 2 the command was written wrongly,
130 interrupted, 143 terminated. When whoever reads our output stops reading, as `head` does, that is no error.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli import (
    alerts,
    console,
    consume,
    dlq,
    doctor,
    groups,
    init,
    lag,
    metrics,
    pipelines,
    plan,
    produce,
    prove,
    run,
    serve,
    spark,
    topics,
)
from penstock.cli.demo import command as demo
from penstock.errors import PenstockError

EXIT_CODES = "Exit codes: 0 done, 1 an error, 2 the command was written wrongly, 130 interrupted, 143 terminated."


_ORDER = (
    *("demo", "init", "doctor", "serve", "console", "topics", "produce", "consume", "groups", "lag", "dlq", "alerts"),
    *("metrics", "run", "pipelines", "spark", "plan", "prove"),
)


class Root(TyperGroup):
    """The command as a whole. Errors that are a user's to solve end here as one sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which a newcomer meets them."""
        return sorted(self.commands, key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        signal.signal(signal.SIGTERM, _terminated)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except PenstockError as error:
            typer.echo(f"penstock: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None
        except BrokenPipeError:
            # What is still buffered has nowhere to go; Python would complain about it when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


def _terminated(number: int, _: FrameType | None) -> None:
    """Leave by the way of an exception, so that everything that was opened is closed."""
    raise SystemExit(128 + number)


app = typer.Typer(
    name="penstock",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help is shown in half the time, as nothing has to be loaded to draw boxes around it.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=f"Which stream is meant: --url, or else $PENSTOCK_URL, or else kafka://127.0.0.1:9092. {EXIT_CODES}",
)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
app.command("init", epilog=init.EXAMPLES)(init.init)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("console", epilog=console.EXAMPLES)(console.console)
app.add_typer(topics.app, name="topics")
app.command("produce", epilog=produce.EXAMPLES)(produce.produce)
app.command("consume", epilog=consume.EXAMPLES)(consume.consume)
app.add_typer(groups.app, name="groups")
app.command("lag", epilog=lag.EXAMPLES)(lag.lag)
app.add_typer(dlq.app, name="dlq")
app.add_typer(alerts.app, name="alerts")
app.command("metrics", epilog=metrics.EXAMPLES)(metrics.metrics)
app.command("run", cls=run.RunCommand, epilog=run.EXAMPLES)(run.run)
app.add_typer(pipelines.app, name="pipelines")
app.add_typer(spark.app, name="spark")
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
app.add_typer(prove.app, name="prove")


def _show_version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Carry events: produce them, keep them, consume them."""


def main() -> None:
    _only(sys.argv[1:2])()


def _only(words: list[str]) -> typer.Typer:
    """The command with the one noun that is asked for: to make all of them ready takes longer than to start a broker.
    All of them, if none has this name: help, and what is said to who mistypes, needs every name."""
    narrow = copy.copy(app)
    narrow.registered_commands = [command for command in app.registered_commands if [command.name] == words]
    narrow.registered_groups = [group for group in app.registered_groups if [group.name] == words]
    return narrow if narrow.registered_commands or narrow.registered_groups else app
