"""`penstock webhooks`: the receivers that a gateway to `webhooks:FILE` sends to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock.channels.webhooks.channel import path_and_settings
from penstock.channels.webhooks.registration import RegistrationRequest, enable, register
from penstock.channels.webhooks.registry import RegisteredReceiver, Registry
from penstock.channels.webhooks.settings import WebhooksSettings
from penstock.cli.options import AsJson, examples
from penstock.cli.output import confirm, print_json, report, say, time_text
from penstock.cli.record_formats import printable_bytes
from penstock.cli.tables import print_table
from penstock.errors import ConfigError
from penstock.model.clock import SystemClock
from penstock.model.text import count_text

app = typer.Typer(
    name="webhooks",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Register, list and remove the receivers of a webhooks: file, whether or not a gateway runs.",
)

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="The file of the receivers, or the webhooks: URL of the gateway, whose settings (allow_http, "
        "private_addresses, verify) then count here, too.",
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The receiver's id.")]


@app.command(
    "register",
    epilog=examples(
        "penstock webhooks register ./webhooks.db https://shop.example/hooks",
        "penstock webhooks register ./webhooks.db https://shop.example/hooks --event 'order.*' --event refund.begun",
        "penstock webhooks register 'webhooks:./webhooks.db?verify=false' https://shop.example/hooks",
    ),
)
def register_receiver(
    file: File,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where it receives: https://HOST/PATH.")],
    event: Annotated[
        list[str] | None,
        typer.Option("--event", "-e", metavar="TYPE", help="An event type, or order.*; may be repeated. Default: all."),
    ] = None,
    secret_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The environment variable with its secret. Default: a new one is made."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register a receiver of what is sent from now on, and print its id and its secret.

    It gets {"type": "webhook.verification", "challenge": ...} and must return the challenge in a 2xx answer.
    """
    secret = None
    if secret_env is not None and not (secret := os.environ.get(secret_env)):
        raise ConfigError(f"--secret-env: the environment variable {secret_env} is not set")
    asked = RegistrationRequest(url, event or ["*"], secret)
    with _opened(file, must_exist=False) as (registry, settings):
        receiver = asyncio.run(register(registry, settings, SystemClock(), asked))
    document = {**receiver.shown(), "secret": receiver.secrets[0]}
    if as_json:
        print_json(document)
    else:
        print_table(["id", "secret"], [[receiver.id, receiver.secrets[0]]])
        say("The receiver checks signatures with this secret. It is not shown again; `webhooks rotate` makes another.")


@app.command("list", epilog=examples("penstock webhooks list ./webhooks.db", "penstock webhooks list FILE --json"))
def list_receivers(file: File, as_json: AsJson = False) -> None:
    """List the receivers, the oldest first."""
    with _opened(file) as (registry, _):
        found = registry.receivers()
    if as_json:
        print_json([each.shown() for each in found])
    elif found:
        columns = ["id", "url", "events", "state", "delivered", "refused", "problem"]
        rows = [
            [each.id, each.url, " ".join(each.events), each.state, each.delivered, each.refused, each.problem or None]
            for each in found
        ]
        print_table(columns, rows, numbers=["delivered", "refused"])
    else:
        say("No receiver is registered.")


@app.command("show", epilog=examples("penstock webhooks show ./webhooks.db wh_5f0c2a91e7d3b6480c1f9a2e"))
def show(file: File, id: Id, as_json: AsJson = False) -> None:
    """Show a receiver, and what it refused for good."""
    with _opened(file) as (registry, _):
        receiver = registry.receiver(id)
        refusals = registry.refusals(id)
        behind = max(0, registry.end() - receiver.next)
    if as_json:
        refused = [
            {"id": message, "event": event, "value": _text(value), "problem": problem}
            for message, event, value, problem in refusals
        ]
        print_json({**receiver.shown(), "messages_behind": behind, "refusals": refused})
        return
    for name, value in {**receiver.shown(), "events": " ".join(receiver.events), "messages_behind": behind}.items():
        shown = time_text(receiver.failing_since_ms) if name == "failing_since_ms" else value
        typer.echo(f"{name.removesuffix('_ms').replace('_', ' ')}: {'-' if shown in ('', None) else shown}")
    if refusals:
        typer.echo("")
        rows = [[message, event or None, problem, _text(value)] for message, event, value, problem in refusals]
        print_table(["message", "event", "problem", "value"], rows)


@app.command("remove", epilog=examples("penstock webhooks remove ./webhooks.db wh_5f0c2a91e7d3b6480c1f9a2e --yes"))
def remove(
    file: File,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The receivers' ids.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove receivers. What waits for them is not sent."""
    with _opened(file) as (registry, _):
        found = [registry.receiver(id) for id in ids]
        if not yes:
            confirm(f"Remove {', '.join(each.url for each in found)}?", "Nothing was removed.")
        for each in found:
            registry.remove(each.id)
    report({"removed": ids}, f"Removed {count_text(len(found), 'receiver')}.", as_json=as_json)


@app.command("enable", epilog=examples("penstock webhooks enable ./webhooks.db wh_5f0c2a91e7d3b6480c1f9a2e"))
def enable_receiver(file: File, id: Id, as_json: AsJson = False) -> None:
    """Send to a disabled receiver again, first what still waits for it. It must return a challenge, too."""
    with _opened(file) as (registry, settings):
        asyncio.run(enable(registry, settings, SystemClock(), registry.receiver(id)))
        receiver: RegisteredReceiver = registry.receiver(id)
    report(receiver.shown(), f"{receiver.url} is {receiver.state}.", as_json=as_json)


@app.command("rotate", epilog=examples("penstock webhooks rotate ./webhooks.db wh_5f0c2a91e7d3b6480c1f9a2e"))
def rotate(file: File, id: Id, as_json: AsJson = False) -> None:
    """Make a new secret and print it. Requests are signed with the old one, too, until the next change."""
    with _opened(file) as (registry, _):
        registry.receiver(id)
        secret = registry.rotate(id)
    if as_json:
        print_json({"id": id, "secret": secret})
    else:
        typer.echo(secret)


def _text(value: bytes | None) -> str | None:
    return None if value is None else printable_bytes(value)


@contextmanager
def _opened(file: str, *, must_exist: bool = True) -> Iterator[tuple[Registry, WebhooksSettings]]:
    """The receivers of a file. A misspelt name must not show an empty list."""
    path, settings = path_and_settings(file if file.startswith("webhooks:") else f"webhooks:{file}", {})
    if must_exist and not Path(path).exists():
        raise ConfigError(f"there is no file {path}: `penstock webhooks register` makes it, or a gateway to webhooks:")
    with closing(Registry(path)) as registry:
        yield registry, settings
