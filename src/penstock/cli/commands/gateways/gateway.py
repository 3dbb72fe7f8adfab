"""`penstock gateway`: carry records from one system to another."""

from __future__ import annotations

import sys
import threading
from typing import Annotated, Any, Final

import typer

from penstock.cli.logs import show_log_of
from penstock.cli.modules import module_of
from penstock.cli.options import Checkpoints, examples
from penstock.cli.output import say
from penstock.cli.stream import position
from penstock.errors import ConfigError
from penstock.gateway import DEFAULT_INBOX, Gateway, GatewayProgress
from penstock.model import Guarantee, Ordering
from penstock.model.retry import Retry

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock gateway amqp://localhost/orders kafka://127.0.0.1:9092#orders",
    "penstock gateway kafka://127.0.0.1:9092#orders redis://localhost:6379/0 --map shop.mapping:anonymise",
    "penstock gateway log:./data#orders sqs://eu-west-1/orders --once",
    "penstock gateway nats://localhost#orders log:./data --checkpoints sqlite:./gateway.db",
)
_SHOWN_EVERY_S: Final = 1.0
_LOGGED_EVERY_S: Final = 30.0


@app.command("gateway", epilog=EXAMPLES)
def gateway(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="URL#TOPIC of a stream; or a queue or channel.")],
    sink: Annotated[
        str, typer.Argument(metavar="SINK", help="The same. A stream without #TOPIC gets the source's topic.")
    ],
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="What to send for each record: the function takes a Record and returns bytes, text, a dict, a "
            "NewRecord, a list of those, or None to drop it.",
        ),
    ] = None,
    group: Annotated[str, typer.Option(help="The group under which progress is saved.")] = "gateway",
    guarantee: Annotated[
        Guarantee, typer.Option(help="exactly-once needs source and sink in one stream with transactions.")
    ] = Guarantee.AT_LEAST_ONCE,
    order: Annotated[Ordering | None, typer.Option(help="Which records of a topic keep their order.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="How many records are mapped at a time.")] = 1,
    retry: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TIMES",
            help="How often a record is tried, the first time included, before it becomes a dead letter. Default: "
            f"{Retry().attempts}. A sink that cannot be reached is retried without a limit.",
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC|URL",
            help="Where records go that cannot be mapped or sent. Default: TOPIC.dlq in the source's stream or the "
            "inbox; the queue's own dead letters.",
        ),
    ] = None,
    checkpoints: Checkpoints = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help="Where a new group begins in a topic: earliest, latest, a time."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Carry the records that a topic has now, then end.")] = False,
    partitions: Annotated[int | None, typer.Option(min=1, help="Partitions of a sink topic that is created.")] = None,
    inbox: Annotated[
        str, typer.Option(metavar="URL", help="The embedded log where records of a channel are kept until delivered.")
    ] = DEFAULT_INBOX,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
    ] = None,
    health: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve /healthz and /readyz there.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow addresses that other machines can reach: there is no login.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only warnings and errors.")] = False,
) -> None:
    """Carry records from one system to another until stopped.

    Records of a channel are stored in an inbox on this machine first; a sender that waits for an answer gets it then.
    SIGTERM and Ctrl-C finish what is in flight, then end.
    """
    show_log_of("penstock", quiet=True)
    bridge = Gateway(
        source,
        sink,
        map=None if mapping is None else _function(mapping),
        group=group,
        guarantee=guarantee,
        order=order,
        workers=workers,
        retry=retry,
        dead_letters=True if dead_letters is None else dead_letters,
        checkpoints=checkpoints,
        start=None if start is None else position(start, "--from"),
        partitions=partitions,
        inbox=inbox,
        metrics=metrics,
        health=health,
        insecure_endpoints=insecure,
    )
    if not quiet:
        say(f"{bridge.source.shown} to {bridge.sink.shown}, {_promise(bridge, guarantee)}")
    ended = threading.Event()
    shower = threading.Thread(target=_show, args=(bridge, ended), name="penstock-gateway-progress", daemon=True)
    if not quiet:
        shower.start()
    try:
        bridge.run(end=position("latest", "--once") if once else None)
    finally:
        ended.set()
        if not quiet:
            shower.join()
            say(_line(bridge.progress()))


def _promise(bridge: Gateway, guarantee: Guarantee) -> str:
    if bridge.source.kind != "channel":
        return str(guarantee)
    return f"{guarantee} from its inbox on"


def _function(text: str) -> Any:
    """The function that --map names."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise typer.BadParameter(f"{text!r} is not MODULE:FUNCTION, such as shop.mapping:anonymise", param_hint="--map")
    found = getattr(module_of(module, f"--map {text}"), name, None)
    if not callable(found):
        raise ConfigError(f"--map {text}: {module} has no function {name!r}")
    return found


def _show(bridge: Gateway, ended: threading.Event) -> None:
    """A line that changes on a terminal; a line now and then elsewhere."""
    is_terminal = sys.stderr.isatty()
    while not ended.wait(_SHOWN_EVERY_S if is_terminal else _LOGGED_EVERY_S):
        line = _line(bridge.progress())
        if is_terminal:
            sys.stderr.write(f"\r\x1b[J{line}")
            sys.stderr.flush()
        else:
            say(line)
    if is_terminal:
        sys.stderr.write("\r\x1b[J")


def _line(progress: GatewayProgress) -> str:
    parts = [
        ("received", progress.received),
        ("delivered", progress.delivered),
        ("waiting", progress.waiting),
        ("retried", progress.retried),
        ("dead letters", progress.dead_letters),
        ("refused", progress.refused),
        ("lost", progress.lost),
    ]
    return ", ".join(f"{name} {count:,}" for name, count in parts if count is not None)
