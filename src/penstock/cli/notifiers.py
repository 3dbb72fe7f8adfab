"""`penstock alerts notifiers`: where notifications go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.options import DEFAULT_URL, AsJson, ListByDefault, Url, examples
from penstock.cli.output import print_json, report
from penstock.cli.quantities import seconds
from penstock.cli.tables import print_table
from penstock.model.text import duration_text, number_text
from penstock.observe.alerts import EmailSettings, LogSettings, Rule, WebhookSettings
from penstock.observe.alerts.config_file import AlertConfigFile
from penstock.observe.alerts.settings import type_of
from penstock.observe.place import rules_path

RulesFile = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_ALERTS",
        metavar="FILE",
        help="The file of rules. Default: the one that the console of this stream uses.",
        show_default=False,
    ),
]


def config_file(path: Path | None, url: str) -> AlertConfigFile:
    return AlertConfigFile(path if path is not None else rules_path(url))


def shown_rule(rule: Rule) -> tuple[str, str | None]:
    """When it fires, and for how long it must hold: `lag_s >= 5 min, of billing`."""
    if rule.kind.unit == "s":
        amount = duration_text(rule.threshold)
    else:
        amount = f"{number_text(rule.threshold)} {rule.kind.unit}"
    text = f"{rule.kind} {'<=' if rule.kind.is_worse_when_lower else '>='} {amount}"
    if rule.match != "*":
        text += f", of {rule.match}"
    if rule.unless:
        text += f", unless {rule.unless}"
    return text, duration_text(rule.for_s) if rule.for_s else None


app = typer.Typer(
    cls=ListByDefault, rich_markup_mode=None, help="List, add and remove notifiers: a log, a webhook, mail."
)

Name = Annotated[str, typer.Argument(metavar="NOTIFIER", help="Its name in rules.")]


@app.command("list", epilog=examples("penstock alerts notifiers", "penstock alerts notifiers list --json"))
def list_notifiers(rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the notifiers, without secrets, and the rules that use them."""
    config = config_file(rules, url).read()
    rows = [
        {
            "notifier": each.name,
            "type": type_of(each),
            "target": each.target,
            "repeat_s": each.repeat_s or None,
            "rules": [rule.name for rule in config.rules if each.name in rule.notify],
        }
        for each in config.all_notifiers
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
        str | None, typer.Option(metavar="HOST[:PORT]", help="Send mail through this server; needs --sender and --to.")
    ] = None,
    sender: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The sender's address.")] = None,
    to: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="A recipient; may be repeated.")] = None,
    security: Annotated[str | None, typer.Option(help="starttls (the default), ssl, or none.")] = None,
    user: Annotated[str | None, typer.Option(help="The user name at the mail server.")] = None,
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable with the password.")
    ] = None,
    password_file: Annotated[str | None, typer.Option(metavar="FILE", help="The file with the password.")] = None,
    repeat: Annotated[
        str, typer.Option(metavar="TIME", help="Repeat after this time while it fires; 0: never.")
    ] = "4h",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the notifier of this name.")] = False,
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a notifier. Secrets stay out of the file of rules, which only names them. Try it with `alerts test`."""
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
        raise typer.BadParameter("give one of --log-file, --webhook, --webhook-env and --smtp", param_hint="NOTIFIER")
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
    config_file(rules, url).change(lambda config: config.with_notifier(made, replace=replace))
    text = f"Added notifier {name}: {made.target}. Try it: penstock alerts test {name}"
    report({"notifier": name, "target": made.target}, text, as_json=as_json)


@app.command("remove", epilog=examples("penstock alerts notifiers remove oncall"))
def remove(name: Name, rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove a notifier that no rule uses."""
    config_file(rules, url).change(lambda config: config.without_notifier(name))
    report({"notifier": name}, f"Removed notifier {name}.", as_json=as_json)


def _refuse(options: dict[str, Any], beside: str) -> None:
    """Refuse options that would be ignored."""
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}".replace("--url", "--webhook")
            raise typer.BadParameter(f"cannot be combined with {beside}", param_hint=option)


def _host_port(text: str) -> tuple[str, int | None]:
    host, separator, port = text.rpartition(":")
    if not separator:
        return text, None
    if not host or not port.isdecimal():
        raise typer.BadParameter(f"{text!r} is not HOST or HOST:PORT", param_hint="--smtp")
    return host.strip("[]"), int(port)
