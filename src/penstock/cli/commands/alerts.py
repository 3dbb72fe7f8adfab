"""`penstock alerts`: rules for what needs attention, and notifications."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import notifiers
from penstock.cli.notifiers import RulesFile, config_file, shown_rule
from penstock.cli.options import DEFAULT_URL, AsJson, Checkpoints, ListByDefault, Url, examples
from penstock.cli.output import print_json, report, say, time_text
from penstock.cli.quantities import seconds
from penstock.cli.stream import open_connection, silence_log
from penstock.cli.tables import print_table
from penstock.errors import BrokerUnavailableError
from penstock.observe.alerts import AlertConfig, Alerting, AlertState, Rule, RuleKind, checking
from penstock.observe.alerts.config_file import AlertConfigFile
from penstock.observe.alerts.memory import MemoryFile
from penstock.observe.alerts.messages import trial_message
from penstock.observe.alerts.notifying import make_notifier
from penstock.observe.alerts.readings import unusable
from penstock.observe.alerts.rules import Phase
from penstock.observe.facts import Snapshot
from penstock.observe.stream_observer import StreamObserver
from penstock.observe.watching import Watch
from penstock.streams.url import without_password


def look_and_check(
    file: AlertConfigFile,
    url: str,
    apart_s: float,
    dead_letters: Sequence[str],
    pipelines: Path | None,
    checkpoints: str | None,
) -> list[AlertState]:
    """What is wrong according to the rules of the file. A stream that does not answer is a finding, not an error."""
    rules = file.read().rules
    path = file.path.with_name(f"{file.path.stem}.check.json")
    memory, unreadable = checking.read_memory(path)
    looks = list(_looks(url, apart_s, dead_letters, pipelines, checkpoints))
    found, memory = checking.check(rules, looks, memory)
    for problem in (unreadable, checking.write_memory(path, memory), unusable(rules, looks[-1])):
        if problem is not None:
            say(problem)
    return found


def _looks(
    url: str, apart_s: float, dead_letters: Sequence[str], pipelines: Path | None, checkpoints: str | None
) -> Iterator[Snapshot]:
    try:
        with (
            open_connection(url) as stream,
            contextlib.closing(
                StreamObserver(stream, checkpoints=checkpoints, dead_letters=dead_letters, pipelines=pipelines)
            ) as observer,
        ):
            yield observer.look()
            time.sleep(apart_s)
            yield observer.look()
    except BrokerUnavailableError as error:
        with contextlib.closing(StreamObserver(None, dead_letters=dead_letters, pipelines=pipelines)) as observer:
            yield observer.failed(str(error))


class Reporter:
    """Prints changes: alerts as JSON if wanted, and problems of alerting itself."""

    def __init__(self, alerting: Alerting, as_json: bool) -> None:
        self._alerting = alerting
        self._as_json = as_json
        self._told: dict[tuple[str, str], tuple[str, int | None]] = {}
        self._problems: dict[str, str | None] = {}

    def heard(self, snapshot: Snapshot) -> None:
        try:
            self._alerting.heard(snapshot)
        except Exception as error:  # the watch would only log it, and the log is silenced
            self._tell_problem("evaluation", f"{type(error).__name__}: {error}")
            raise
        self._tell_problem("evaluation", None)
        if self._as_json:
            self._tell_changes()
        self._tell_problem("alerts", self._alerting.problem)
        for notifier in self._alerting.notifiers():
            self._tell_problem(f"notifier {notifier.name}", notifier.error)

    def _tell_changes(self) -> None:
        now = {}
        for state in self._alerting.states():
            key = (state.rule, state.subject)
            now[key] = (str(state.phase), state.fired_ms)
            if self._told.get(key) != now[key] and state.phase is not Phase.PENDING:
                print_json(state, indent=False)
        self._told = now

    def _tell_problem(self, what: str, problem: str | None) -> None:
        if self._problems.get(what) != problem:
            self._problems[what] = problem
            say(f"{what}: {problem}" if problem is not None else f"{what}: resolved")


app = typer.Typer(
    name="alerts",
    cls=ListByDefault,
    rich_markup_mode=None,
    help="List, add, remove and mute rules; check them once, or watch and notify.",
)
app.add_typer(notifiers.app, name="notifiers")

DeadLetters = Annotated[
    list[str] | None, typer.Option(metavar="SPEC", help="Another dead-letter store; may be repeated.")
]
Pipelines = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder in which pipelines keep their checkpoints.")
]
RuleName = Annotated[str, typer.Argument(metavar="RULE", help="The name of the rule, from `penstock alerts list`.")]


@app.command("list", epilog=examples("penstock alerts", "penstock alerts list --json"))
def list_rules(rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the rules, their notifiers, and what fires, as far as a running watch has seen."""
    file = config_file(rules, url)
    config = file.read()
    memory, problem = MemoryFile(file.path.with_name(f"{file.path.stem}.state.json")).read()
    firing: dict[str, list[str]] = {}
    for alert in memory.evaluator.alerts:
        if alert.phase is Phase.FIRING:
            firing.setdefault(alert.rule.name, []).append(alert.subject)
    now_ms = time.time_ns() // 1_000_000
    mutes = [mute for mute in config.mutes if mute.until_ms > now_ms]
    if as_json:
        seen = {"firing": firing, "seen_ms": memory.evaluator.at_ms}
        print_json({"file": str(file.path), "rules": config.rules, "mutes": mutes, **seen})
        return
    rows = []
    for rule in config.rules:
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
        typer.Option(metavar="AMOUNT", help="The limit: a number, or a duration such as 5m where the kind is one."),
    ],
    match: Annotated[str, typer.Option(metavar="PATTERN", help="The names it covers: billing, 'orders.*', '*'.")] = "*",
    unless: Annotated[str, typer.Option(metavar="PATTERN", help="The names it does not cover.")] = "",
    for_time: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long it must hold before it fires.")
    ] = "0",
    quiet: Annotated[
        str, typer.Option(metavar="TIME", help="How long it must not hold before it is resolved.")
    ] = "60s",
    severity: Annotated[str, typer.Option(metavar="SEVERITY", help="warning or critical.")] = "warning",
    notify: Annotated[
        list[str] | None,
        typer.Option(metavar="NOTIFIER", help="The notifier; may be repeated. Default: the log.", show_default=False),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the rule of this name.")] = False,
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a rule. A running watch uses it from its next look on."""
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
    config_file(rules, url).change(lambda config: config.with_rule(rule, replace=replace))
    text = f"{'Replaced' if replace else 'Added'} rule {name}: {shown_rule(rule)[0]}."
    report(rule, text, as_json=as_json)


@app.command("remove", epilog=examples("penstock alerts remove far-behind"))
def remove(name: RuleName, rules: RulesFile = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Remove a rule. Its firing alerts are resolved."""
    removed: list[Any] = []

    def without(config: AlertConfig) -> AlertConfig:
        removed.append(config.rule(name))
        return config.without_rule(name)

    config_file(rules, url).change(without)
    report(removed[-1], f"Removed rule {name}.", as_json=as_json)


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
    subject: Annotated[
        str, typer.Option(metavar="NAME", help="Only for this group, topic, pipeline or dead-letter store.")
    ] = "*",
    off: Annotated[bool, typer.Option("--off", help="End the mute.")] = False,
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send no notifications for a rule's alerts for a while. They are still evaluated and shown."""
    if (for_time is None) is not off:
        raise typer.BadParameter("give a duration, such as --for 2h, or --off to end the mute", param_hint="--for")
    now_ms = time.time_ns() // 1_000_000
    until_ms = now_ms + round(seconds(for_time, "--for") * 1000) if for_time is not None else 0
    config_file(rules, url).change(lambda config: config.muted(name, until_ms, subject, now_ms))
    text = f"Unmuted {name}." if off else f"Muted {name} until {time_text(until_ms)}."
    report({"rule": name, "subject": subject, "until_ms": until_ms or None}, text, as_json=as_json)


@app.command("test", epilog=examples("penstock alerts test oncall"))
def try_notifier(
    notifier: Annotated[
        str, typer.Argument(metavar="NOTIFIER", help="The notifier, from `penstock alerts notifiers list`.")
    ],
    rules: RulesFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send a test message through a notifier, and report whether it arrived."""
    silence_log()
    settings = config_file(rules, url).read().notifier(notifier)
    message = trial_message(notifier, without_password(url), time.time_ns() // 1_000_000)
    remark = make_notifier(settings).send(message)
    text = f"Sent a test message to {settings.target}." + (f" But: {remark}" if remark else "")
    report({"notifier": notifier, "target": settings.target, "remark": remark}, text, as_json=as_json)


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
    checkpoints: Checkpoints = None,
    dead_letters: DeadLetters = None,
    pipelines: Pipelines = None,
    as_json: AsJson = False,
) -> None:
    """Look twice, and print what is wrong. Exits with 1 if anything is, so that cron reports it.

    No notification is sent, and rules fire without their waiting time. Conditions that take longer to see, such as a
    group that has stopped, are seen from one check to the next.
    """

    found = look_and_check(
        config_file(rules, url), url, seconds(look_for, "--look-for"), dead_letters or [], pipelines, checkpoints
    )
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
    checkpoints: Checkpoints = None,
    dead_letters: DeadLetters = None,
    pipelines: Pipelines = None,
    as_json: AsJson = False,
) -> None:
    """Watch in the foreground, and notify as the rules say, until stopped.

    A running console does the same. If several watch with one file of rules, one of them notifies, and another takes
    over when it ends. --json prints a line for each alert that fires or is resolved.
    """

    every_s = seconds(every, "--every")
    if every_s <= 0:
        raise typer.BadParameter("must be positive, such as 5s", param_hint="--every")
    for_s = seconds(for_time, "--for") if for_time is not None else None
    path = config_file(rules, url).path
    silence_log()
    alerting = Alerting(path, stream=url)
    watch = Watch(url, None, every_s, checkpoints=checkpoints, dead_letters=dead_letters or [], pipelines=pipelines)
    try:
        watch.listen(Reporter(alerting, as_json).heard)
        say(f"Watching {without_password(url)} with {len(alerting.rules())} rules from {path}. Ctrl-C ends it.")
        watch.start()
        threading.Event().wait(for_s)
    finally:
        watch.close()
        alerting.close()


def _kind(text: str) -> RuleKind:
    try:
        return RuleKind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(RuleKind)}", param_hint="--kind") from None


def _threshold(text: str, kind: RuleKind) -> float:
    try:
        return float(text)
    except ValueError:
        if kind.unit == "s":
            return seconds(text, "--threshold")
        raise typer.BadParameter(f"{text!r} is not a number of {kind.unit}", param_hint="--threshold") from None
