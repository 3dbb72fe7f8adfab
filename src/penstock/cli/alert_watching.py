"""Watching in the foreground, for `penstock alerts watch`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from penstock.cli.output import say
from penstock.cli.stream import hush

if TYPE_CHECKING:
    from penstock.observe.alerts import Alerting
    from penstock.observe.facts import Snapshot


def run(
    path: Path,
    url: str,
    every_s: float,
    for_s: float | None,
    dead_letters: Sequence[str],
    pipelines: Path | None,
    as_json: bool,
) -> None:
    """Until it is interrupted, or `for_s` has passed."""
    from penstock.observe.alerts import Alerting
    from penstock.observe.watching import Watch
    from penstock.streams.url import without_password

    hush()
    alerting = Alerting(path, stream=url)
    watch = Watch(url, None, every_s, dead_letters=dead_letters, pipelines=pipelines)
    try:
        reporter = Reporter(alerting, as_json)
        watch.listen(reporter.heard)
        say(f"Watching {without_password(url)} by {len(alerting.rules())} rules of {path}. Ctrl-C ends it.")
        watch.start()
        threading.Event().wait(for_s)
    finally:
        watch.close()
        alerting.close()


class Reporter:
    """Tells what changes: alerts as JSON if they are wanted, and what is wrong with the telling itself."""

    def __init__(self, alerting: Alerting, as_json: bool) -> None:
        self._alerting = alerting
        self._as_json = as_json
        self._told: dict[tuple[str, str], tuple[str, int | None]] = {}
        self._problems: dict[str, str | None] = {}

    def heard(self, snapshot: Snapshot) -> None:
        try:
            self._alerting.heard(snapshot)
        except Exception as error:  # the watch would only log it, and the log is hushed
            self._tell_problem("judging", f"{type(error).__name__}: {error}")
            raise
        self._tell_problem("judging", None)
        if self._as_json:
            self._tell_changes()
        self._tell_problem("alerts", self._alerting.problem)
        for notifier in self._alerting.notifiers():
            self._tell_problem(f"notifier {notifier.name}", notifier.error)

    def _tell_changes(self) -> None:
        from penstock.observe.alerts import Phase

        now = {}
        for state in self._alerting.states():
            key = (state.rule, state.subject)
            now[key] = (str(state.phase), state.fired_ms)
            if self._told.get(key) != now[key] and state.phase is not Phase.PENDING:
                typer.echo(msgspec.json.encode(state).decode())
        self._told = now

    def _tell_problem(self, what: str, problem: str | None) -> None:
        if self._problems.get(what) != problem:
            self._problems[what] = problem
            say(f"{what}: {problem}" if problem is not None else f"{what}: well again")
