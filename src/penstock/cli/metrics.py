"""`penstock metrics`: the metrics of a whole stream, for Prometheus."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.output import say
from penstock.cli.stream import DEFAULT_URL, Url, examples, hush

if TYPE_CHECKING:
    from penstock.observe.facts import Snapshot

EXAMPLES: Final = examples(
    "penstock metrics --url kafka://127.0.0.1:9092",
    "penstock metrics --url log:./data --listen 127.0.0.1:0 --every 15",
    "penstock metrics --dead-letters sqlite:./letters.db --pipelines ./checkpoints",
    "penstock metrics --once",
)
_FIRST_LOOK_S: Final = 30.0


def metrics(
    url: Url = DEFAULT_URL,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve them; port 0 takes a free one and prints it.")
    ] = "127.0.0.1:9465",
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.5, help="How often the stream is looked at.")] = 10.0,
    dead_letters: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Dead letters beside those in topics: sqlite:FILE, file:FILE or postgresql://...; may be repeated.",
        ),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="STORE", help="Where apps keep their checkpoints, if not beside the stream.")
    ] = None,
    pipelines: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder with the checkpoints of pipelines.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, print the metrics, and end.")] = False,
) -> None:
    """Serve lag, lag in seconds, time to loss, dead letters and pipelines of a whole stream to Prometheus.

    It runs until it is stopped. A broker that is away is no error: penstock_stream_up tells.
    """
    from penstock.observe.metrics_stream import registry_of
    from penstock.observe.serving import host_and_port, serve
    from penstock.observe.watching import Watch

    hush()
    host_and_port(listen)  # what is written wrongly is told before anything is started
    watch = Watch(
        url, every_s=every, checkpoints=checkpoints, dead_letters=tuple(dead_letters or ()), pipelines=pipelines
    )
    watch.start()
    try:
        if once:
            _print_once(watch.look_now(_FIRST_LOOK_S))
            return
        with serve(listen, registry_of(lambda: watch.latest)) as server:
            say(f"penstock: metrics of {shown(url)} on {server.url}")
            threading.Event().wait()
    finally:
        watch.close()


def _print_once(snapshot: Snapshot) -> None:
    from prometheus_client import generate_latest

    from penstock.errors import BrokerUnavailableError
    from penstock.observe.metrics_stream import registry_of

    if snapshot.problem is not None:
        raise BrokerUnavailableError(snapshot.problem)
    typer.echo(generate_latest(registry_of(lambda: snapshot)).decode(), nl=False)


def shown(url: str) -> str:
    from penstock.streams.url import without_password

    return without_password(url)
