"""Alerting as a whole: who is told what, how often, and what a restart, a dead webhook or a broken file does to it."""

from __future__ import annotations

import concurrent.futures
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ClosedError, ConfigError, NotifyError
from penstock.observe.alerts import (
    Alerting,
    AlertState,
    LogSettings,
    NotifierState,
    Phase,
    Rule,
    RuleKind,
    WebhookSettings,
)
from penstock.observe.facts import Snapshot
from penstock.testing import VirtualClock
from tests.clients.waiting import eventually
from tests.observe.alerts.seeing import BEGAN_MS, at, group
from tests.observe.alerts.sinks import Hook, hook

BEHIND = Rule(name="behind", kind=RuleKind.LAG, threshold=5, quiet_s=0, notify=("hook",))
SLOW, FAST = group(end=10), group(end=0)


@pytest.fixture
def webhook() -> Iterator[Hook]:
    with hook() as running:
        yield running


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(BEGAN_MS)


Begin = Callable[..., Alerting]


@pytest.fixture
def begin(tmp_path: Path, clock: VirtualClock) -> Iterator[Begin]:
    """Begin alerting on one file, as a process does; all are closed in the end."""
    begun: list[Alerting] = []

    def again(**options: Any) -> Alerting:
        begun.append(Alerting(tmp_path / "alerts.json", clock=clock, log_to=io.StringIO(), **options))
        return begun[-1]

    yield again
    for each in begun:
        each.close()


@pytest.fixture
def alerting(begin: Begin, webhook: Hook) -> Alerting:
    """With one rule, which tells the webhook."""
    made = begin()
    for rule in made.rules():
        made.remove_rule(rule.name)
    made.add_notifier(WebhookSettings(name="hook", url=webhook.url, repeat_s=3600))
    made.add_rule(BEHIND)
    return made


def told(alerting: Alerting) -> tuple[Phase | None, ...]:
    return tuple(each.phase for state in alerting.states() for each in state.told)


def wait_until_told(alerting: Alerting, *phases: Phase | None) -> None:
    eventually(f"it was told {phases}", lambda: told(alerting) == phases)


def notifier(alerting: Alerting, name: str = "hook") -> NotifierState:
    (found,) = [each for each in alerting.notifiers() if each.name == name]
    return found


def heard(alerting: Alerting, *snapshots: Snapshot) -> AlertState:
    for snapshot in snapshots:
        alerting.heard(snapshot)
    (state,) = alerting.states()
    return state


def test_who_is_named_is_told_once_that_it_fires_and_once_that_it_is_resolved(
    alerting: Alerting, webhook: Hook
) -> None:
    for second in range(0, 30, 5):
        alerting.heard(at(second, SLOW))
        wait_until_told(alerting, Phase.FIRING)
    alerting.heard(at(30, FAST))
    wait_until_told(alerting, Phase.RESOLVED)
    alerting.heard(at(35, FAST))
    assert [webhook.next().json["status"] for _ in range(2)] == ["firing", "resolved"]
    assert webhook.taken.empty()
    assert notifier(alerting).sent == 2


def test_what_goes_on_firing_is_said_again_after_a_while(alerting: Alerting, webhook: Hook) -> None:
    alerting.heard(at(0, SLOW))
    wait_until_told(alerting, Phase.FIRING)
    alerting.heard(at(3599, SLOW))
    alerting.heard(at(3600, SLOW))
    first, second = webhook.next().json, webhook.next().json
    assert (first["alerts"][0]["repeated"], second["alerts"][0]["repeated"]) == (False, True)
    assert first["id"] != second["id"]
    assert "still firing" in second["text"]
    assert webhook.taken.empty()


def test_a_restart_tells_nobody_twice(alerting: Alerting, begin: Begin, webhook: Hook) -> None:
    alerting.heard(at(0, SLOW))
    wait_until_told(alerting, Phase.FIRING)
    alerting.close()
    again = begin()
    again.heard(at(5, SLOW))
    assert told(again) == (Phase.FIRING,)
    again.heard(at(10, FAST))
    wait_until_told(again, Phase.RESOLVED)
    assert [webhook.next().json["status"] for _ in range(2)] == ["firing", "resolved"]
    assert webhook.taken.empty()


def test_what_could_not_be_told_before_a_restart_is_told_after_it(
    alerting: Alerting, begin: Begin, webhook: Hook
) -> None:
    webhook.status = 500
    alerting.heard(at(0, SLOW))
    eventually("the webhook failed", lambda: notifier(alerting).error)
    alerting.close()
    webhook.status = 204
    again = begin()
    again.heard(at(5, SLOW))
    wait_until_told(again, Phase.FIRING)


def test_a_webhook_that_is_out_of_reach_is_tried_again_ever_more_seldom_and_its_failure_is_shown(
    alerting: Alerting, webhook: Hook, clock: VirtualClock
) -> None:
    webhook.status = 503
    alerting.heard(at(0, SLOW))
    for failures, wait_s in enumerate((1, 2, 4, 8), start=1):
        webhook.next()
        clock.wait_for_sleepers(1)
        assert notifier(alerting).failures == failures
        alerting.heard(at(failures, SLOW))
        clock.advance(wait_s - 0.1)
        clock.wait_for_sleepers(1)
        assert webhook.taken.empty()
        clock.advance(0.1)
    (state,) = alerting.states()
    assert state.told[0].phase is None
    assert "503" in (state.told[0].error or "")
    webhook.next()
    clock.wait_for_sleepers(1)
    webhook.status = 204
    clock.advance(16)
    wait_until_told(alerting, Phase.FIRING)
    assert (notifier(alerting).failures, notifier(alerting).error) == (0, None)


def test_a_webhook_that_asks_for_time_gets_it(alerting: Alerting, webhook: Hook, clock: VirtualClock) -> None:
    webhook.status, webhook.answer_headers = 429, {"Retry-After": "120"}
    alerting.heard(at(0, SLOW))
    webhook.next()
    clock.wait_for_sleepers(1)
    clock.advance(119)
    clock.wait_for_sleepers(1)
    assert webhook.taken.empty()
    clock.advance(1)
    assert webhook.next().json["status"] == "firing"


def test_what_came_and_went_while_a_webhook_was_out_of_reach_is_told_as_resolved(
    alerting: Alerting, webhook: Hook, clock: VirtualClock
) -> None:
    webhook.status = 500
    alerting.heard(at(0, SLOW))
    webhook.next()
    clock.wait_for_sleepers(1)
    webhook.status = 204
    alerting.heard(at(60, FAST))
    clock.advance(1)
    (alert,) = webhook.next().json["alerts"]
    assert (alert["status"], alert["fired_at"]) == ("resolved", "2027-01-15T08:00:00Z")
    wait_until_told(alerting, Phase.RESOLVED)


def test_a_webhook_that_hangs_holds_up_neither_the_watcher_nor_other_notifiers(
    alerting: Alerting, webhook: Hook, tmp_path: Path
) -> None:
    alerting.add_notifier(LogSettings(name="file", file=str(tmp_path / "alerts.log")))
    alerting.add_rule(Rule(name="behind", kind=RuleKind.LAG, threshold=5, notify=("hook", "file")), replace=True)
    webhook.gate.clear()
    alerting.heard(at(0, SLOW))
    webhook.next()
    for second in range(1, 100):
        alerting.heard(at(second, SLOW))
    wait_until_told(alerting, None, Phase.FIRING)
    assert len((tmp_path / "alerts.log").read_text().splitlines()) == 1
    webhook.gate.set()
    wait_until_told(alerting, Phase.FIRING, Phase.FIRING)
    assert webhook.taken.empty()


def test_everything_that_fires_at_once_is_one_message(alerting: Alerting, webhook: Hook) -> None:
    many = [group(f"group-{number}", end=10) for number in range(40)]
    alerting.heard(at(0, *many))
    assert len(webhook.next().json["alerts"]) == 40
    wait_until_told(alerting, *[Phase.FIRING] * 40)
    assert webhook.taken.empty()


def test_a_muted_alert_is_shown_and_told_only_when_the_mute_is_over(
    alerting: Alerting, webhook: Hook, clock: VirtualClock
) -> None:
    alerting.mute("behind", BEGAN_MS + 60_000)
    state = heard(alerting, at(0, SLOW), at(59, SLOW))
    assert state.is_firing
    assert state.muted_until_ms == BEGAN_MS + 60_000
    assert [mute.rule for mute in alerting.mutes()] == ["behind"]
    clock.advance(60)
    assert heard(alerting, at(60, SLOW)).muted_until_ms is None
    wait_until_told(alerting, Phase.FIRING)
    assert alerting.mutes() == []


def test_what_came_and_went_while_it_was_muted_is_told_to_nobody(alerting: Alerting, webhook: Hook) -> None:
    alerting.mute("behind", BEGAN_MS + 60_000)
    assert heard(alerting, at(0, SLOW), at(30, FAST), at(90, FAST)).phase is Phase.RESOLVED
    alerting.close()
    assert webhook.taken.empty()


def test_a_mute_of_one_subject_leaves_the_others(alerting: Alerting, webhook: Hook) -> None:
    alerting.mute("behind", BEGAN_MS + 60_000, "billing")
    alerting.heard(at(0, SLOW, group("shop", end=10)))
    assert [alert["subject"] for alert in webhook.next().json["alerts"]] == ["shop"]
    alerting.mute("behind", 0, "billing")
    alerting.heard(at(5, SLOW, group("shop", end=10)))
    assert [alert["subject"] for alert in webhook.next().json["alerts"]] == ["billing"]


def test_removing_a_rule_that_fires_tells_that_it_is_over(alerting: Alerting, webhook: Hook) -> None:
    alerting.heard(at(0, SLOW))
    wait_until_told(alerting, Phase.FIRING)
    assert alerting.remove_rule("behind") == BEHIND
    alerting.heard(at(5, SLOW))
    assert [webhook.next().json["status"] for _ in range(2)] == ["firing", "resolved"]
    with pytest.raises(ConfigError, match="no rule 'behind'"):
        alerting.remove_rule("behind")


def test_rules_that_another_process_writes_are_taken_up(alerting: Alerting, begin: Begin) -> None:
    other = begin(notify=False)
    other.add_rule(Rule(name="other", kind=RuleKind.LAG, threshold=1, notify=()))
    alerting.heard(at(0, SLOW))
    assert {state.rule for state in alerting.states()} == {"behind", "other"}
    assert [rule.name for rule in alerting.rules()] == ["behind", "other"]


def test_a_file_that_somebody_breaks_is_told_of_and_the_rules_before_it_hold_on(
    alerting: Alerting, begin: Begin, tmp_path: Path
) -> None:
    good = (tmp_path / "alerts.json").read_text()
    (tmp_path / "alerts.json").write_text('{"rules": [')
    assert heard(alerting, at(0, SLOW)).is_firing
    assert "the rules that were read before stay in force" in (alerting.problem or "")
    with pytest.raises(ConfigError):
        begin()
    with pytest.raises(ConfigError):
        alerting.add_rule(Rule(name="other", kind=RuleKind.LAG, threshold=1))
    (tmp_path / "alerts.json").write_text(good + " ")
    alerting.heard(at(5, SLOW))
    assert alerting.problem is None


def test_one_process_tells_and_another_takes_over_when_it_is_gone(
    alerting: Alerting, begin: Begin, webhook: Hook
) -> None:
    second = begin()
    assert "only shows the alerts" in (second.problem or "")
    assert str(os.getpid()) in (second.problem or "")
    alerting.heard(at(0, SLOW))
    wait_until_told(alerting, Phase.FIRING)
    assert heard(second, at(1, SLOW)).is_firing
    alerting.close()
    second.heard(at(5, SLOW))
    assert second.problem is None
    assert told(second) == (Phase.FIRING,)
    second.heard(at(10, FAST))
    wait_until_told(second, Phase.RESOLVED)
    assert [webhook.next().json["status"] for _ in range(2)] == ["firing", "resolved"]
    assert webhook.taken.empty()


def test_a_damaged_memory_is_put_aside_and_told_of(alerting: Alerting, begin: Begin, tmp_path: Path) -> None:
    alerting.heard(at(0, SLOW))
    alerting.close()
    (tmp_path / "alerts.state.json").write_bytes(b"\x00\xff")
    again = begin()
    assert "cannot be read" in (again.problem or "")
    assert (tmp_path / "alerts.state.json.damaged").read_bytes() == b"\x00\xff"
    assert heard(again, at(5, SLOW)).is_firing


def test_a_memory_that_cannot_be_written_is_told_of_and_judging_goes_on(alerting: Alerting, tmp_path: Path) -> None:
    (tmp_path / "alerts.state.json.new").mkdir()
    assert heard(alerting, at(0, SLOW)).is_firing
    assert "cannot be written" in (alerting.problem or "")
    (tmp_path / "alerts.state.json.new").rmdir()
    alerting.heard(at(5, FAST))
    assert alerting.problem is None


def test_who_only_looks_tells_nobody_and_leaves_no_file(begin: Begin, tmp_path: Path) -> None:
    looking = begin(notify=False)
    looking.heard(at(0, problem="gone"))
    looking.heard(at(30, problem="gone"))
    assert [state.rule for state in looking.states() if state.is_firing] == ["stream-away"]
    assert list(tmp_path.iterdir()) == []


def test_a_notifier_that_is_changed_is_used_as_it_is(alerting: Alerting, webhook: Hook, clock: VirtualClock) -> None:
    webhook.status = 500
    alerting.heard(at(0, SLOW))
    webhook.next()
    clock.wait_for_sleepers(1)
    with hook() as moved:
        alerting.add_notifier(WebhookSettings(name="hook", url=moved.url), replace=True)
        alerting.heard(at(5, SLOW))
        assert moved.next().json["status"] == "firing"
        wait_until_told(alerting, Phase.FIRING)
    assert webhook.taken.empty()


def test_a_test_message_is_sent_at_once_and_its_failure_is_raised(alerting: Alerting, webhook: Hook) -> None:
    assert alerting.test("hook") is None
    assert webhook.next().json["status"] == "test"
    webhook.status = 500
    with pytest.raises(NotifyError, match="500"):
        alerting.test("hook")
    with pytest.raises(ConfigError, match="no notifier 'pager'; there are: log, hook"):
        alerting.test("pager")


def test_everything_may_be_called_at_once_by_anybody(alerting: Alerting, webhook: Hook) -> None:
    def hear(number: int) -> None:
        for second in range(20):
            alerting.heard(at(number * 20 + second, SLOW if second % 2 else FAST))

    def look(_: int) -> None:
        for _ in range(20):
            assert {state.name for state in alerting.notifiers()} == {"log", "hook"}
            assert "behind" in {rule.name for rule in alerting.rules()}
            assert all(state.told for state in alerting.states())
            alerting.mutes()

    def change(number: int) -> None:
        for count in range(5):
            alerting.add_rule(Rule(name=f"{number}-{count}", kind=RuleKind.LAG, threshold=5, notify=("hook", "log")))
            alerting.mute(f"{number}-{count}", BEGAN_MS + 1_000_000)
            alerting.remove_rule(f"{number}-{count}")

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        busy = [pool.submit(work, number) for number in range(2) for work in (hear, look, change)]
        for each in busy:
            each.result(timeout=60)
    assert [rule.name for rule in alerting.rules()] == ["behind"]


def test_closing_ends_the_threads_and_hears_nothing_more(alerting: Alerting, webhook: Hook) -> None:
    alerting.heard(at(0, SLOW))
    wait_until_told(alerting, Phase.FIRING)
    alerting.close()
    alerting.close()
    alerting.heard(at(5, FAST))
    assert alerting.states()[0].is_firing
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-alerts-hook"]
    with pytest.raises(ClosedError):
        alerting.mute("behind", 1)


def test_without_rules_of_ones_own_the_log_gets_a_line(tmp_path: Path, clock: VirtualClock) -> None:
    written = io.StringIO()
    alerting = Alerting(tmp_path / "new" / "alerts.json", clock=clock, log_to=written)
    alerting.heard(at(0, problem="refused"))
    alerting.heard(at(30, problem="refused"))
    wait_until_told(alerting, Phase.FIRING)
    alerting.close()
    assert "firing stream-away (critical): the stream has not answered for 30 s: refused\n" in written.getvalue()
