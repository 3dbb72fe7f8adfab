"""`penstock metrics`: the metrics of a whole stream, for Prometheus."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Final

import typer
from prometheus_client import generate_latest

from penstock.cli.options import DEFAULT_URL, Url, examples
from penstock.cli.output import say
from penstock.cli.stream import silence_log
from penstock.errors import BrokerUnavailableError
from penstock.observe.facts import Snapshot
from penstock.observe.metrics.serving import check_address, serve
from penstock.observe.metrics.stream import registry_of
from penstock.observe.watching import Watch
from penstock.streams.url import without_password

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock metrics --url kafka://127.0.0.1:9092",
    "penstock metrics --url log:./data --listen 127.0.0.1:0 --every 15",
    "penstock metrics --dead-letters sqlite:./letters.db --pipelines ./checkpoints",
    "penstock metrics --once",
)
_FIRST_LOOK_S: Final = 30.0


@app.command("metrics", epilog=EXAMPLES)
def metrics(
    url: Url = DEFAULT_URL,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve them; port 0 takes a free one and prints it.")
    ] = "127.0.0.1:9465",
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, help="Time between two looks at the stream.")
    ] = 10.0,
    dead_letters: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Dead letters outside topics: sqlite:FILE, file:FILE or postgresql://...; may be repeated.",
        ),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="STORE", help="The checkpoint store of apps, if not the default one.")
    ] = None,
    pipelines: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder with the checkpoints of pipelines.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a --listen that other machines can reach: there is no login.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once, print the metrics, and end.")] = False,
) -> None:
    """Serve lag, lag in seconds, time to loss, dead letters and pipelines of a whole stream to Prometheus.

    It runs until it is stopped. An unreachable broker is not an error: see penstock_stream_up.
    """
    silence_log()
    check_address(listen, insecure=insecure)  # report a bad address before anything is started
    watch = Watch(
        url, every_s=every, checkpoints=checkpoints, dead_letters=tuple(dead_letters or ()), pipelines=pipelines
    )
    watch.start()
    try:
        if once:
            _print_once(watch.look_now(_FIRST_LOOK_S))
            return
        with serve(listen, registry_of(lambda: watch.latest), insecure=insecure) as server:
            say(f"penstock: metrics of {without_password(url)} on {server.url}")
            threading.Event().wait()
    finally:
        watch.close()


def _print_once(snapshot: Snapshot) -> None:
    if snapshot.problem is not None:
        raise BrokerUnavailableError(snapshot.problem)
    typer.echo(generate_latest(registry_of(lambda: snapshot)).decode(), nl=False)
