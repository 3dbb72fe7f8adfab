"""Judge each transaction within 20 ms with three analysers in parallel, using the answers that arrive in time.

    python examples/fraud.py [URL]

One analyser calls a service that is sometimes slow. The verdict does not wait for it: it is labelled partial and names
the missing analyser, and the late answer follows on its own topic.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from dataclasses import dataclass

import penstock as ps

DEADLINE_S = 0.020
TRANSACTIONS = 300


@dataclass
class Transaction:
    id: int
    card: str
    amount: float
    country: str


@dataclass
class Verdict:
    transaction: int
    suspicion: float
    label: str
    missing: list[str]


@dataclass
class LateAnswer:
    transaction: int
    analyser: str
    suspicion: float
    late_by_ms: float


transactions = ps.Topic("transactions", Transaction, key=lambda transaction: transaction.card)
verdicts = ps.Topic("verdicts", Verdict, key=lambda verdict: str(verdict.transaction))
late_answers = ps.Topic("late-answers", LateAnswer, key=lambda answer: str(answer.transaction))

recent: deque[str] = deque(maxlen=50)


def velocity(transaction: Transaction) -> float:
    """How often the card was used recently."""
    seen = list(recent).count(transaction.card)
    recent.append(transaction.card)
    return min(1.0, seen / 10)


def amount(transaction: Transaction) -> float:
    return 0.9 if transaction.amount > 5_000 else 0.1


def geo(transaction: Transaction) -> float:
    """Ask another service where the card usually is. Every tenth answer is slow."""
    time.sleep(0.080 if transaction.id % 10 == 0 else 0.001)
    return 0.7 if transaction.country == "elsewhere" else 0.0


def main(url: str) -> None:
    with ps.Producer(url) as producer:

        def send_on(analyser: str, transaction: Transaction, suspicion: float, late_by_s: float) -> None:
            producer.send(late_answers, LateAnswer(transaction.id, analyser, suspicion, late_by_s * 1000))

        for number in range(TRANSACTIONS):
            country = "elsewhere" if number % 17 == 0 else "home"
            producer.send(transactions, Transaction(number, f"card-{number % 40}", number * 20.0, country))
        producer.flush(30)

        app = ps.App(url, group="fraud")
        with ps.within(DEADLINE_S, velocity, amount, geo, workers=16, on_late=send_on) as analyse:

            @app.handle(transactions, to=verdicts, order="none", workers=4, end="latest")
            def judge(transaction: Transaction) -> Verdict:
                result = analyse(transaction)
                suspicion = max(result.answers.values(), default=1.0)
                return Verdict(transaction.id, suspicion, result.label, list(result.missing))

            app.run()
        statistics = analyse.statistics

    took = statistics.took
    print(f"{statistics.calls} transactions judged: {statistics.complete} complete, {statistics.partial} partial")
    print(f"waited for each: p50 {took.p50_s * 1000:.1f} ms, p99 {took.p99_s * 1000:.1f} ms")
    for name, analyser in statistics.analysers.items():
        print(f"{name}: {analyser.answered} in time, {analyser.late} late, {analyser.failed} failed")

    with ps.connect(url) as stream:
        labels = Counter(
            verdict.label for record in stream.read("verdicts") if (verdict := verdicts.decode(record.value))
        )
        print("verdicts on the topic:", dict(labels))
        print("late answers on the topic:", sum(1 for _ in stream.read("late-answers")))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "log:./data")
