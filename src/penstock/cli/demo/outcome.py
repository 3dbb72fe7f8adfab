"""How the demo went: everything that the summary and the report tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.cli.demo.account import Account
from penstock.cli.demo.checking import Check, Latencies, typical_second, wrong_with
from penstock.cli.demo.live import Happening, Sample
from penstock.cli.demo.parts import Parts
from penstock.cli.demo.plan import DemoSettings
from penstock.cli.demo.results import Results


def delay_text(delay_ms: float) -> str:
    """7 ms, 1.2 s, 100 s."""
    if delay_ms < 1000:
        return f"{delay_ms:.0f} ms"
    return f"{delay_ms / 1000:.1f} s" if delay_ms % 1000 else f"{delay_ms / 1000:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    settings: DemoSettings
    parts: Parts
    account: Account
    results: Results
    checks: Sequence[Check]
    happenings: Sequence[Happening]
    samples: Sequence[Sample]
    began_ms: int
    """When the demo began, in milliseconds since 1970."""
    first_result_s: float | None
    """From the start of the demo to the first verdict."""
    before_s: float | None
    """From the start of `make demo` to the start of the demo, while packages were installed."""
    took_s: float
    real_time: bool

    @property
    def wrong(self) -> list[str]:
        return wrong_with(self.checks)

    @property
    def latencies(self) -> Latencies:
        return Latencies.of([took_ms for _, took_ms in self.results.latencies])

    @property
    def typical(self) -> Latencies:
        return typical_second(self.results.latencies)

    @property
    def waits(self) -> Latencies:
        return Latencies.of(self.results.waits_ms)

    def figures(self) -> list[Check]:
        """What was measured, beside what was checked."""
        typical, overall, waits = self.typical, self.latencies, self.waits
        found = [
            Check(
                "from append to verdict, p50 / p99",
                f"{delay_text(typical.p50)} / {delay_text(typical.p99)}",
                None,
                f"a typical second; with all outages {delay_text(overall.p50)} / {delay_text(overall.p99)}, "
                f"at most {delay_text(overall.highest)}",
            ),
            Check(
                "waited for analysers, p50 / p99",
                f"{waits.p50:.1f} / {waits.p99:.1f} ms",
                None,
                "the deadline is 20 ms",
            ),
        ]
        if self.real_time:
            found.append(self._figure_of_real_time())
        if self.first_result_s is not None:
            note = "from the start of the demo"
            if self.before_s is not None:
                note += f"; {self.before_s + self.first_result_s:.1f} s from the start of make demo"
            found.append(Check("time to the first result", f"{self.first_result_s:.1f} s", None, note))
        found.append(Check("all of it took", f"{self.took_s:.0f} s"))
        return found

    def _figure_of_real_time(self) -> Check:
        """Of payments that came while the query ran."""
        results = self.results
        live = [each for each in results.large_latencies if each[0] > results.large_since_ms]
        typical = typical_second(live)
        name = "in real-time mode, p50 / p99"
        if not live:
            return Check(name, "-", None, "the query was up when all payments were sent, as the machine is busy")
        value = f"{delay_text(typical.p50)} / {delay_text(typical.p99)}"
        return Check(name, value, None, f"a typical second; {len(live):,} payments came while the query ran")
