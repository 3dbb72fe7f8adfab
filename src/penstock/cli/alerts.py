"""`penstock alerts`: rules for what needs somebody's attention, and telling them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import notifiers
from penstock.cli.alert_files import RulesFile, book_file, shown_rule
from penstock.cli.default_command import ListByDefault
from penstock.cli.output import print_json, print_table, say, time_text
from penstock.cli.quantities import seconds
from penstock.cli.stream import DEFAULT_URL, AsJson, Url, examples, hush

if TYPE_CHECKING:
    from penstock.observe.alerts import Book, Kind

app = typer.Typer(
    cls=ListByDefault,
    rich_markup_mode=None,
    help="List, add, remove and mute rules; check them once, or watch and tell those who are to know.",
)
app.add_typer(notifiers.app, name="notifiers")

RuleName = Annotated[str, typer.Argument(metavar="RULE", help="The name of the rule; `penstock alerts list` has them.")]


@app.command("list", epilog=examples("penstock alerts", "penstock alerts list --json"))
def list_rules(rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the rules, who is told, and what fires by them as far as whoever watches has seen."""
    from penstock.observe.alerts.memory import MemoryFile
    from penstock.observe.alerts.states import Phase

    file = book_file(rules, url)
    book = file.read()
    memory, problem = MemoryFile(file.path.with_name(f"{file.path.stem}.state.json")).read()
    firing: dict[str, list[str]] = {}
    for alert in memory.judge.alerts:
        if alert.phase is Phase.FIRING:
            firing.setdefault(alert.rule.name, []).append(alert.subject)
    now_ms = time.time_ns() // 1_000_000
    mutes = [mute for mute in book.mutes if mute.until_ms > now_ms]
    if as_json:
        print_json(
            {
                "file": str(file.path),
                "rules": book.rules,
                "mutes": mutes,
                "firing": firing,
                "seen_ms": memory.judge.at_ms,
            }
        )
        return
    rows = []
    for rule in book.rules:
        muted = [time_text(mute.until_ms) for mute in mutes if mute.rule == rule.name]
        rows.append(
            (
                rule.name,
                *shown_rule(rule),
                rule.severity,
                ", ".join(rule.notify) or None,
                max(muted, default=None),
                ", ".join(subject or "the stream" for subject in firing.get(rule.name, ())) or None,
            )
        )
    print_table(["rule", "fires when", "for", "severity", "tells", "muted until", "firing"], rows)
    if problem is not None:
        say(problem)
    if not file.path.exists():
        say(f"These are the default rules; the first change writes them to {file.path}")


@app.command(
    "add",
    epilog=examples(
        "penstock alerts add billing-late --kind lag_s --threshold 2m --match billing --severity critical",
        "penstock alerts add quiet --kind topic_silent --threshold 10m --match 'orders.*' --notify oncall",
        "penstock alerts add far-behind --replace --kind lag_s --threshold 10m --unless 'batch-*'",
    ),
)
def add(
    name: RuleName,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="lag_s, lag, time_to_loss_s, letters_rate (a minute), letters_waiting, stalled, topic_silent, lost "
            "or stream_away.",
        ),
    ],
    threshold: Annotated[
        str,
        typer.Option(
            metavar="AMOUNT", help="From where on it is too much: a number, or a time such as 5m where the kind is one."
        ),
    ],
    match: Annotated[str, typer.Option(metavar="PATTERN", help="For which names: billing, 'orders.*', '*'.")] = "*",
    unless: Annotated[str, typer.Option(metavar="PATTERN", help="And for which names it is not.")] = "",
    for_time: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long it must be so before it fires.")
    ] = "0",
    quiet: Annotated[str, typer.Option(metavar="TIME", help="How long it must be over before it is resolved.")] = "60s",
    severity: Annotated[str, typer.Option(metavar="SEVERITY", help="warning or critical.")] = "warning",
    notify: Annotated[
        list[str] | None,
        typer.Option(metavar="NOTIFIER", help="Who is told; may be repeated. Else the log.", show_default=False),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="In place of the rule of this name.")] = False,
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a rule. Whoever watches takes it up with its next look."""
    from penstock.observe.alerts import Rule

    found_kind = _kind(kind)
    rule = Rule(
        name=name,
        kind=found_kind,
        threshold=_threshold(threshold, found_kind),
        match=match,
        unless=unless,
        for_s=seconds(for_time, "--for"),
        quiet_s=seconds(quiet, "--quiet"),
        severity=severity,  # type: ignore[arg-type]
        notify=tuple(notify if notify is not None else ["log"]),
    )
    book_file(rules, url).change(lambda book: book.with_rule(rule, replace=replace))
    if as_json:
        print_json(rule)
    else:
        say(f"{'Replaced' if replace else 'Added'} rule {name}: {shown_rule(rule)[0]}.")


@app.command("remove", epilog=examples("penstock alerts remove far-behind"))
def remove(name: RuleName, rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove a rule. What fires by it is resolved."""
    removed: list[Any] = []

    def without(book: Book) -> Book:
        removed.append(book.rule(name))
        return book.without_rule(name)

    book_file(rules, url).change(without)
    if as_json:
        print_json(removed[-1])
    else:
        say(f"Removed rule {name}.")


@app.command(
    "mute",
    epilog=examples(
        "penstock alerts mute far-behind --for 2h",
        "penstock alerts mute stalled --for 1d --subject nightly-import",
        "penstock alerts mute far-behind --off",
    ),
)
def mute(
    name: RuleName,
    for_time: Annotated[str | None, typer.Option("--for", metavar="TIME", help="For how long, such as 2h.")] = None,
    subject: Annotated[str, typer.Option(metavar="NAME", help="Only for this group, topic, pipeline or place.")] = "*",
    off: Annotated[bool, typer.Option("--off", help="Tell again from now on.")] = False,
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Tell nobody of a rule's alerts for a while. They are judged and shown all the same."""
    if (for_time is None) is not off:
        raise typer.BadParameter("say for how long, such as --for 2h, or --off to tell again", param_hint="--for")
    now_ms = time.time_ns() // 1_000_000
    until_ms = now_ms + round(seconds(for_time, "--for") * 1000) if for_time is not None else 0
    book_file(rules, url).change(lambda book: book.muted(name, until_ms, subject, now_ms))
    if as_json:
        print_json({"rule": name, "subject": subject, "until_ms": until_ms or None})
    else:
        say(f"Told again: {name}." if off else f"Muted {name} until {time_text(until_ms)}.")


@app.command("test", epilog=examples("penstock alerts test oncall"))
def try_notifier(
    notifier: Annotated[
        str, typer.Argument(metavar="NOTIFIER", help="The notifier to try; `penstock alerts notifiers list` has them.")
    ],
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Have a notifier send a test message, and say whether it arrived."""
    from penstock.observe.alerts.messages import trial_message
    from penstock.observe.alerts.notifying import make_notifier
    from penstock.streams.url import without_password

    hush()
    settings = book_file(rules, url).read().notifier(notifier)
    message = trial_message(notifier, without_password(url), time.time_ns() // 1_000_000)
    remark = make_notifier(settings).send(message)
    if as_json:
        print_json({"notifier": notifier, "target": settings.target, "remark": remark})
    else:
        say(f"Sent a test message to {settings.target}." + (f" But: {remark}" if remark else ""))


@app.command(
    "check",
    epilog=examples(
        "penstock alerts check", "penstock alerts check --json", "*/5 * * * * penstock alerts check --url kafka://..."
    ),
)
def check(
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    look_for: Annotated[str, typer.Option(metavar="TIME", help="Time between the two looks that rates need.")] = "4s",
    dead_letters: Annotated[
        list[str] | None, typer.Option(metavar="SPEC", help="A further place of dead letters; may be repeated.")
    ] = None,
    pipelines: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder in which pipelines keep their checkpoints.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look twice, and say what is wrong. Exits with 1 if anything is, so that cron tells you.

    Nobody is notified, and no rule has to hold for a while first. What takes longer to see than a look, such as a group
    that has stopped, is seen from one check to the next.
    """
    from penstock.cli.alert_checking import look_and_check

    found = look_and_check(book_file(rules, url), url, seconds(look_for, "--look-for"), dead_letters or [], pipelines)
    if as_json:
        print_json(found)
    elif not found:
        say("Nothing is wrong.")
    else:
        print_table(
            ["rule", "severity", "about", "what"],
            [(state.rule, state.severity, state.subject or "the stream", state.text) for state in found],
        )
    if found:
        raise typer.Exit(1)


@app.command("watch", epilog=examples("penstock alerts watch", "penstock alerts watch --every 10s --json"))
def watch(
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    every: Annotated[str, typer.Option(metavar="TIME", help="Time between two looks.")] = "5s",
    for_time: Annotated[str | None, typer.Option("--for", metavar="TIME", help="End after this; else never.")] = None,
    dead_letters: Annotated[
        list[str] | None, typer.Option(metavar="SPEC", help="A further place of dead letters; may be repeated.")
    ] = None,
    pipelines: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder in which pipelines keep their checkpoints.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch in the foreground, and tell those whom the rules name, until stopped.

    A running console does the same. Of several that watch by one file of rules, one tells; another takes over when it
    ends. --json prints a line for each alert that fires or is resolved.
    """
    from penstock.cli.alert_watching import run

    every_s = seconds(every, "--every")
    if every_s <= 0:
        raise typer.BadParameter("there must be some time between two looks, such as 5s", param_hint="--every")
    run(
        book_file(rules, url).path,
        url,
        every_s,
        seconds(for_time, "--for") if for_time is not None else None,
        dead_letters or [],
        pipelines,
        as_json,
    )


def _kind(text: str) -> Kind:
    from penstock.observe.alerts import Kind

    try:
        return Kind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(Kind)}", param_hint="--kind") from None


def _threshold(text: str, kind: Kind) -> float:
    try:
        return float(text)
    except ValueError:
        if kind.unit == "s":
            return seconds(text, "--threshold")
        raise typer.BadParameter(f"{text!r} is no number of {kind.unit}", param_hint="--threshold") from None
