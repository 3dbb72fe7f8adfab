"""The consumer: judges transactions within a deadline, and counts page events exactly once. Two processes run it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.app import App
from penstock.consuming import Context, within
from penstock.consuming.deadlines.parallel import Deadline
from penstock.demo.events import (
    CLOSING,
    FRAUD_GROUP,
    LATE_ANSWERS,
    LETTERS,
    PAGE_EVENTS,
    TRANSACTIONS,
    USE_GROUP,
    USE_TABLE,
    VERDICTS,
    LateAnswer,
    PageEvent,
    Transaction,
    Verdict,
    window_of,
)
from penstock.demo.processes import Owner
from penstock.producing.producer import Producer

DEADLINE_S: Final = 0.020
SESSION_TIMEOUT_S: Final = 6.0
"""The session timeout: after this long without a heartbeat, a member counts as dead and loses its partitions."""

_SLOW_S: Final = 0.080
_TELL_EVERY_S: Final = 0.5

_recent: Final[deque[str]] = deque(maxlen=50)


def velocity(transaction: Transaction) -> float:
    """How often the card was used recently."""
    seen = list(_recent).count(transaction.card)
    _recent.append(transaction.card)
    return min(1.0, seen / 5)


def amount(transaction: Transaction) -> float:
    return 0.9 if transaction.cents > 200_000 else 0.1


def geo(transaction: Transaction) -> float:
    """Ask another service where the card usually is. Every tenth call is slow."""
    time.sleep(_SLOW_S if transaction.number % 10 == 0 else 0.001)
    return 0.7 if transaction.country == "elsewhere" else 0.0


def consume(url: str, name: str, *, owner: Owner) -> None:
    with Producer(url) as producer:

        def send_on(analyser: str, transaction: Transaction, suspicion: float, late_by_s: float) -> None:
            producer.send(LATE_ANSWERS, LateAnswer(transaction.number, analyser, suspicion, late_by_s * 1000))

        with within(DEADLINE_S, velocity, amount, geo, workers=16, on_late=send_on) as analyse:
            app = _app(url, name, analyse, owner)
            threading.Thread(target=_watch, args=(app, analyse, owner), name="watch", daemon=True).start()
            app.run()


def _app(url: str, name: str, analyse: Deadline, owner: Owner) -> App:
    def judge(transaction: Transaction, ctx: Context) -> Verdict:
        result = analyse(transaction)
        return Verdict(
            transaction.number,
            max(result.answers.values(), default=1.0),
            result.label,
            list(result.missing),
            result.took_s * 1000,
            ctx.record.timestamp_ms or 0,
            name,
        )

    judge.__qualname__ = "judge"  # its name in dead letters and the console
    app = App(url, group=FRAUD_GROUP, client_id=name)
    app.handle(
        TRANSACTIONS,
        to=VERDICTS,
        order="key",
        workers=8,
        dead_letters=LETTERS,
        session_timeout_s=SESSION_TIMEOUT_S,
        **_rebalances(owner, TRANSACTIONS.name),
    )(judge)
    app.handle(
        PAGE_EVENTS,
        group=USE_GROUP,
        guarantee="exactly-once",
        session_timeout_s=SESSION_TIMEOUT_S,
        **_rebalances(owner, PAGE_EVENTS.name),
    )(count)
    return app


def count(event: PageEvent, ctx: Context) -> None:
    """Count a page event in its window. The count and the checkpoint are saved together, or neither is."""
    if event.number == CLOSING:
        return
    with ctx.transaction() as database:
        database.execute(
            f"INSERT INTO {USE_TABLE} VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET seen = seen + 1",
            (window_of(event.at), event.page),
        )


def _rebalances(owner: Owner, topic: str) -> dict[str, Any]:
    """Report to the demo which partitions this consumer has."""

    def told(kind: str) -> Callable[[Sequence[int]], None]:
        return lambda partitions: owner.tell(kind, topic=topic, partitions=list(partitions))

    return {"on_assigned": told("assigned"), "on_revoked": told("revoked"), "on_lost": told("revoked")}


def _watch(app: App, analyse: Deadline, owner: Owner) -> None:
    """Report progress until asked to finish; then let the app finish its records."""
    while not owner.wants_end.wait(_TELL_EVERY_S):
        told = analyse.statistics
        owner.tell("judged", calls=told.calls, partial=told.partial)
    app.stop()
