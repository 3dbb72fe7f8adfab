"""`penstock outbox`: the events of an outbox into a stream."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer

from penstock.cli.logs import show_log_of
from penstock.cli.options import AsJson, examples
from penstock.cli.output import print_json, say
from penstock.model.stop_signals import on_stop_signals
from penstock.model.text import duration_text
from penstock.observe.metrics.serving import serve
from penstock.streams.url import without_password
from penstock.tables import Relay
from penstock.tables.outbox.storage import open_outbox_storage

app = typer.Typer(
    name="outbox",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Deliver the events of an outbox, which applications wrote to it in their database, to a stream.",
    epilog=examples("penstock outbox relay postgresql://localhost/shop log:./data"),
)

Database = Annotated[
    str, typer.Argument(metavar="DATABASE_URL", help="The database: postgresql://USER@HOST/DATABASE or sqlite:FILE.")
]


@app.command("relay", epilog=examples("penstock outbox relay postgresql://localhost/shop log:./data --once"))
def relay(
    database: Database,
    stream: Annotated[str, typer.Argument(metavar="STREAM_URL", help="Where events are delivered: log:./data.")],
    once: Annotated[bool, typer.Option("--once", help="End when the outbox is empty.")] = False,
    name: Annotated[str, typer.Option(help="Tells the relays of several outboxes into one stream apart.")] = "outbox",
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep delivered rows, with the time in delivered_ms, instead of deleting them."),
    ] = False,
    batch_rows: Annotated[int, typer.Option(min=1, help="Events delivered together, at most.")] = 1_000,
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of topics that do not exist and do not declare a number.")
    ] = 1,
    checkpoints: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where delivered ids are kept, for a stream without transactions."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that other machines can reach: there is no login.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only warnings and errors.")] = False,
) -> None:
    """Deliver committed events in order, until stopped.

    SIGTERM and Ctrl-C deliver the present batch, then end. Killed at any moment, it continues where it was.
    """
    show_log_of("penstock", quiet=True)
    serving = contextlib.nullcontext() if metrics is None else serve(metrics, insecure=insecure)
    with (
        serving,
        Relay(
            database,
            stream,
            name=name,
            batch_rows=batch_rows,
            keep=keep,
            partitions=partitions,
            checkpoints=checkpoints,
        ) as found,
    ):
        with on_stop_signals(lambda _: found.stop(), once=True):
            found.run(once=once)
        if not quiet:
            say(
                f"delivered {found.delivered:,} events of {without_password(database)} to {without_password(stream)}, "
                f"{found.guarantee}"
            )


@app.command("status", epilog=examples("penstock outbox status postgresql://localhost/shop --json"))
def status(database: Database, as_json: AsJson = False) -> None:
    """Show how many events wait for a relay, and for how long the oldest has waited."""
    with contextlib.closing(open_outbox_storage(database)) as storage:
        waiting, oldest_ms = storage.waiting()
    oldest_s = None if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
    if as_json:
        print_json({"waiting": waiting, "oldest_s": oldest_s})
    else:
        oldest = "" if oldest_s is None else f", the oldest for {duration_text(oldest_s)}"
        say(f"{waiting:,} events wait in {without_password(database)}{oldest}")
