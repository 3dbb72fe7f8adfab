"""Runs checks side by side. A check that hangs, as a name server may, costs its own line and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from penstock.cli.checks.finding import Finding, fail, warn
from penstock.errors import PenstockError

Check = Callable[[], Sequence[Finding]]


def examine(checks: Mapping[str, Check], within_s: float) -> list[Finding]:
    """The findings of all checks, in their order. What has not answered within the time is doubtful."""
    deadline_s = time.monotonic() + within_s
    found: dict[str, Sequence[Finding]] = {}
    threads = []
    for what, check in checks.items():
        # Daemons: one that never ends must not keep the command from ending.
        thread = threading.Thread(target=_run, args=(what, check, found), name=f"doctor-{what}", daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    late = f"no answer within {within_s:g} s"
    return [
        finding
        for what in checks
        for finding in found.get(what, (warn(what, late, "give it more time with --within 30s, and see what is slow"),))
    ]


def _run(what: str, check: Check, found: dict[str, Sequence[Finding]]) -> None:
    try:
        found[what] = check()
    except PenstockError as error:
        found[what] = (fail(what, str(error), "see the message"),)
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        found[what] = (fail(what, text, "this is a fault of penstock: please report it"),)
