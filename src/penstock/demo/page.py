"""The report as a page: one file without scripts, in the reader's light or dark theme."""

from __future__ import annotations

import datetime
import os
import platform
from html import escape
from pathlib import Path
from typing import Final

from penstock import __version__
from penstock.demo.charts import Line, bar_chart, line_chart, number_text, series_of
from penstock.demo.checking import Check, Outcome, delay_text
from penstock.errors import PenstockError

PAGE: Final = "report.html"


def check_folder(folder: Path) -> None:
    """Raise PenstockError at once when a report could not be written there. Creates nothing."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PenstockError(f"the report cannot be written to {folder}: choose another folder with --report")


def write_report(outcome: Outcome) -> Path:
    """Write the report into the chosen folder, over an older one, and return its file."""
    folder = outcome.settings.report
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / PAGE
        file.write_text(page_of(outcome), "utf-8")
    except OSError as error:
        raise PenstockError(
            f"the report cannot be written to {folder}: {error.strerror}; choose another folder with --report"
        ) from error
    return file


_STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5d6b7c; --rule: #e3e7ec;
  --sent: #8a97a8; --judged: #0f7fb8; --lag: #c2570c; --good: #15803d; --good-soft: #dcf5e4; --bad: #b91c1c;
  --bad-soft: #fde3e3; --outage: #c2570c; --third: #7a5bd0; }
@media (prefers-color-scheme: dark) { :root { --page: #0e141b; --card: #161e28; --ink: #e6ebf1; --soft: #93a1b2;
  --rule: #263241; --sent: #76869a; --judged: #41b3ea; --lag: #f59554; --good: #4ade80; --good-soft: #12351f;
  --bad: #f87171; --bad-soft: #421a1a; --outage: #f59554; --third: #a78bfa; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 36px 20px 48px; }
header { display: flex; flex-wrap: wrap; gap: 10px 16px; align-items: center; margin-bottom: 6px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0; color: var(--soft); }
.badge { padding: 4px 12px; border-radius: 999px; font-weight: 600; background: var(--good-soft); color: var(--good); }
.badge.bad { background: var(--bad-soft); color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 12px; margin: 22px 0 14px; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.2; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
section { padding: 18px 20px; margin-bottom: 14px; }
svg { display: block; width: 100%; height: auto; margin-top: 8px; font: 11px system-ui, sans-serif; }
.legend { display: inline-flex; gap: 14px; float: right; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.sent { stroke: var(--sent); } .line.judged { stroke: var(--judged); } .line.lag { stroke: var(--lag); }
.line.third { stroke: var(--third); }
.area { opacity: 0.16; stroke: none; } .area.lag { fill: var(--lag); }
.bar.generator { fill: var(--sent); } .bar.consumers { fill: var(--judged); } .bar.spark { fill: var(--third); }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); }
.outage { fill: var(--outage); opacity: 0.13; } .outage-name { fill: var(--outage); font-weight: 600; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; }
td { padding: 7px 10px 7px 0; border-top: 1px solid var(--rule); vertical-align: top; }
tr:first-child td { border-top: 0; }
td.value { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; font-weight: 600; }
td.mark { width: 70px; } td.note { color: var(--soft); }
.ok { color: var(--good); font-weight: 600; } .wrong { color: var(--bad); font-weight: 700; }
td.time { color: var(--soft); white-space: nowrap; width: 70px; font-variant-numeric: tabular-nums; }
code { background: var(--page); border: 1px solid var(--rule); border-radius: 6px; padding: 1px 6px; font-size: 13px; }
footer { color: var(--soft); font-size: 13px; margin-top: 18px; }
@media (max-width: 640px) { td.note { display: none; } .legend { float: none; display: flex; }
  section { overflow-x: auto; } svg { min-width: 640px; } }
"""

_COLOURS: Final = {"sent": "--sent", "judged": "--judged", "lag": "--lag", "third": "--third"}


def page_of(outcome: Outcome) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Penstock demo</title><style>{_STYLE}</style></head><body><main>"
        f"{_head(outcome)}{_tiles(outcome)}{_charts(outcome)}{_table(outcome)}{_story(outcome)}{_foot(outcome)}"
        "</main></body></html>\n"
    )


def _head(outcome: Outcome) -> str:
    badge = '<span class="badge">nothing lost, every total right</span>'
    if outcome.wrong:
        badge = '<span class="badge bad">not as promised</span>'
    settings = outcome.settings
    with_spark = "with a pipeline on Spark" if outcome.parts.spark else "without Spark"
    killed = [each.mark.removesuffix(" killed") for each in outcome.live.events if each.mark.endswith("killed")]
    return (
        f"<header><h1>Penstock demo</h1>{badge}</header>"
        f"<p>{outcome.account.sent:,} events in {settings.seconds:g} s, {with_spark}. Killed with SIGKILL on the way: "
        f"{escape(', '.join(killed) or 'nothing')}.</p>"
    )


def _tiles(outcome: Outcome) -> str:
    checks = {each.name: each.value for each in outcome.checks}
    first = "-" if outcome.live.first_result_s is None else f"{outcome.live.first_result_s:.1f} s"
    tiles = [
        (checks["events sent"], "events sent"),
        (checks["lost"], "lost"),
        (checks["judged again"], "judged again"),
        (checks["dead letters"], "dead letters"),
        (delay_text(outcome.typical.p50), "append to verdict, p50"),
        (first, "to the first result"),
    ]
    cells = "".join(f'<div class="tile"><b>{escape(value)}</b><span>{name}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{cells}</div>'


def _charts(outcome: Outcome) -> str:
    series = series_of(outcome)
    rates = [Line("sent", series.sent, "sent"), Line("judged", series.judged, "judged")]
    delays = [Line("p50", series.p50, "judged"), Line("p99", series.p99, "third")]
    lag = [Line("waiting", series.lag, "lag", filled=True)]
    return "".join(
        (
            _section(
                "Transactions a second",
                "The backlog of each outage is worked off afterwards.",
                line_chart(rates, series.outages, series.end_s, text_of=number_text),
                [(line.name, _COLOURS[line.style]) for line in rates],
            ),
            _section(
                "Lag",
                "Transactions that are in the log and not judged yet.",
                line_chart(lag, series.outages, series.end_s, text_of=number_text, height=180),
                [],
            ),
            _section(
                "From append to verdict",
                "By the log's own clock, for the transactions appended in each second.",
                line_chart(delays, series.outages, series.end_s, text_of=delay_text, log=True),
                [(line.name, _COLOURS[line.style]) for line in delays],
            ),
            _section(
                "Page events per 10 seconds",
                "The generator's own count, and what was counted exactly once from the log.",
                bar_chart(series.windows),
                [("generator", "--sent"), ("consumers, in SQLite", "--judged")]
                + ([("pipeline on Spark", "--third")] if outcome.parts.spark else []),
            ),
        )
    )


def _section(title: str, text: str, chart: str, legend: list[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i style="background:var({colour})"></i>{escape(name)}</span>' for name, colour in legend)
    above = f'<div class="legend">{keys}</div>' if keys else ""
    return f"<section>{above}<h2>{title}</h2><p>{text}</p>{chart}</section>"


def _table(outcome: Outcome) -> str:
    rows = "".join(_row(each) for each in (*outcome.checks, *outcome.figures()))
    return (
        "<section><h2>What was checked</h2><p>Everything was read back from the log and compared with what the "
        f"generator says it sent.</p><table>{rows}</table></section>"
    )


def _row(check: Check) -> str:
    mark = {True: '<span class="ok">ok</span>', False: '<span class="wrong">WRONG</span>', None: ""}[check.holds]
    return (
        f'<tr><td>{escape(check.name)}</td><td class="value">{escape(check.value)}</td><td class="mark">{mark}</td>'
        f'<td class="note">{escape(check.note)}</td></tr>'
    )


def _story(outcome: Outcome) -> str:
    rows = "".join(
        f'<tr><td class="time">{each.at_s:.1f} s</td><td>{escape(each.text)}</td></tr>' for each in outcome.live.events
    )
    return f"<section><h2>What happened</h2><table>{rows}</table></section>"


def _foot(outcome: Outcome) -> str:
    began = datetime.datetime.fromtimestamp(outcome.began_ms / 1000, datetime.UTC)
    settings = outcome.settings
    again = f"penstock demo --seed {settings.seed} --seconds {settings.seconds:g} --rate {settings.rate}"
    return (
        f"<footer>{began:%Y-%m-%d %H:%M} UTC · Penstock {__version__} · Python {platform.python_version()} · "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores · acks=all with fsync<br>"
        f"Again: <code>{escape(again)}</code></footer>"
    )
