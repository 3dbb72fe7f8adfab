"""`penstock alerts notifiers`: who is told, and how."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.alert_files import RulesFile, book_file
from penstock.cli.default_command import ListByDefault
from penstock.cli.output import print_json, print_table, say
from penstock.cli.quantities import seconds
from penstock.cli.stream import DEFAULT_URL, AsJson, Url, examples

app = typer.Typer(
    cls=ListByDefault, rich_markup_mode=None, help="List, add and remove those who are told: a log, a webhook, mail."
)

Name = Annotated[str, typer.Argument(metavar="NOTIFIER", help="The name that rules know it by.")]


@app.command("list", epilog=examples("penstock alerts notifiers", "penstock alerts notifiers list --json"))
def list_notifiers(rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the notifiers, without anything secret, and the rules that have them told."""
    from penstock.observe.alerts.settings import type_of

    book = book_file(rules, url).read()
    rows = [
        {
            "notifier": each.name,
            "type": type_of(each),
            "target": each.target,
            "repeat_s": each.repeat_s or None,
            "rules": [rule.name for rule in book.rules if each.name in rule.notify],
        }
        for each in book.all_notifiers
    ]
    if as_json:
        print_json(rows)
    else:
        cells = [[*list(row.values())[:-1], ", ".join(row["rules"]) or None] for row in rows]  # type: ignore[arg-type]
        print_table(list(rows[0]), cells, numbers=["repeat_s"])


@app.command(
    "add",
    epilog=examples(
        "penstock alerts notifiers add oncall --webhook https://example.com/hook --secret-env HOOK_SECRET",
        "penstock alerts notifiers add chat --webhook-env CHAT_URL --repeat 1d",
        "penstock alerts notifiers add mail --smtp mail.example.com --sender penstock@example.com "
        "--to oncall@example.com --user penstock --password-file ./password",
        "penstock alerts notifiers add file --log-file ./alerts.log",
    ),
)
def add(
    name: Name,
    log_file: Annotated[str | None, typer.Option(metavar="FILE", help="Append a line for each alert here.")] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Post JSON to this URL.")] = None,
    webhook_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Post JSON to the URL in this environment variable.")
    ] = None,
    secret_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable with the secret that signs posts.")
    ] = None,
    secret_file: Annotated[str | None, typer.Option(metavar="FILE", help="The file with that secret.")] = None,
    smtp: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Send mail by this server; needs --sender and --to.")
    ] = None,
    sender: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Who the mail is from.")] = None,
    to: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="Who gets the mail; may be repeated.")] = None,
    security: Annotated[str | None, typer.Option(help="starttls (the default), ssl, or none.")] = None,
    user: Annotated[str | None, typer.Option(help="The user to sign in to the mail server with.")] = None,
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable with the password.")
    ] = None,
    password_file: Annotated[str | None, typer.Option(metavar="FILE", help="The file with the password.")] = None,
    repeat: Annotated[str, typer.Option(metavar="TIME", help="Say again after so long; 0: never.")] = "4h",
    replace: Annotated[bool, typer.Option("--replace", help="In place of the notifier of this name.")] = False,
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a notifier. Secrets are not kept in the file of rules: it names where they are. Try it with `alerts test`."""
    from penstock.observe.alerts import EmailSettings, LogSettings, WebhookSettings

    of_webhook: dict[str, Any] = {
        "url": webhook,
        "url_env": webhook_env,
        "secret_env": secret_env,
        "secret_file": secret_file,
    }
    of_mail: dict[str, Any] = {
        "sender": sender,
        "to": tuple(to) if to else None,
        "security": security,
        "user": user,
        "password_env": password_env,
        "password_file": password_file,
    }
    kinds = [log_file is not None, webhook is not None or webhook_env is not None, smtp is not None]
    if sum(kinds) != 1:
        raise typer.BadParameter(
            "say how: one of --log-file, --webhook, --webhook-env and --smtp", param_hint="NOTIFIER"
        )
    shared: dict[str, Any] = {"name": name, "repeat_s": seconds(repeat, "--repeat")}
    made: Any
    if log_file is not None:
        _refuse({**of_webhook, **of_mail}, "--log-file")
        made = LogSettings(file=log_file, **shared)
    elif smtp is not None:
        _refuse(of_webhook, "--smtp")
        if not sender or not to:
            raise typer.BadParameter("mail needs --sender and --to as well", param_hint="--smtp")
        host, port = _host_port(smtp)
        made = EmailSettings(
            host=host, port=port, **shared, **{key: value for key, value in of_mail.items() if value is not None}
        )
    else:
        _refuse(of_mail, "--webhook")
        made = WebhookSettings(**shared, **of_webhook)
    book_file(rules, url).change(lambda book: book.with_notifier(made, replace=replace))
    if as_json:
        print_json({"notifier": name, "target": made.target})
    else:
        say(f"Added notifier {name}: {made.target}. Try it: penstock alerts test {name}")


@app.command("remove", epilog=examples("penstock alerts notifiers remove oncall"))
def remove(name: Name, rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove a notifier that no rule names any more."""
    book_file(rules, url).change(lambda book: book.without_notifier(name))
    if as_json:
        print_json({"notifier": name})
    else:
        say(f"Removed notifier {name}.")


def _refuse(options: dict[str, Any], beside: str) -> None:
    """What would be taken and ignored."""
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}".replace("--url", "--webhook")
            raise typer.BadParameter(f"means nothing beside {beside}", param_hint=option)


def _host_port(text: str) -> tuple[str, int | None]:
    host, separator, port = text.rpartition(":")
    if not separator:
        return text, None
    if not host or not port.isdecimal():
        raise typer.BadParameter(f"{text!r} is not HOST or HOST:PORT", param_hint="--smtp")
    return host.strip("[]"), int(port)
