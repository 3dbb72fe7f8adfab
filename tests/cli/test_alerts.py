"""`penstock alerts`."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

import penstock
from penstock.cli import notifiers
from penstock.cli.commands import alerts
from penstock.cli.commands.alerts import look_and_check
from penstock.console.service import default_state
from penstock.errors import ConfigError
from penstock.observe.alerts import AlertConfig, NotifierSettings, Phase, Rule, RuleKind, WebhookSettings
from penstock.observe.alerts.config_file import AlertConfigFile
from penstock.observe.alerts.memory import MemoryFile
from penstock.observe.place import rules_path
from tests.cli.running import Command
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.observe.alerts.sinks import Hook, hook
from tests.servers import Penstock

LATE: dict[str, Any] = {"kind": "lag_s", "threshold": "2m", "match": "bill*", "unless": "*-test", "for_time": "30s"}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands silence the library's log, in this process as well when they are called here."""
    library = logging.getLogger("penstock")
    handlers, propagate = list(library.handlers), library.propagate
    yield
    library.handlers[:], library.propagate = handlers, propagate


@pytest.fixture
def webhook() -> Iterator[Hook]:
    with hook() as running:
        yield running


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return tmp_path / "alerts.json"


@pytest.fixture
def behind(stream: penstock.Connection, numbers: str) -> str:
    """A group that is six records behind."""
    name = fresh("group")
    stream.group_admin().move(name, {(numbers, 0): 4})
    return name


def write_rules(path: Path, *rules: Rule, notifiers: tuple[NotifierSettings, ...] = ()) -> None:
    path.write_bytes(msgspec.json.encode(AlertConfig(rules=rules, notifiers=notifiers)))


def read_rules(path: Path) -> dict[str, Rule]:
    return {rule.name: rule for rule in AlertConfigFile(path).read().rules}


def test_the_default_rules_are_listed_and_nothing_is_written(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alerts.list_rules(rules=rules)
    shown = capsys.readouterr()
    assert "far-behind" in shown.out
    assert "lag_s >= 5 min" in shown.out
    assert "default rules" in shown.err
    alerts.list_rules(rules=rules, as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert [rule["name"] for rule in listed["rules"]][:2] == ["stream-away", "records-lost"]
    assert not rules.exists()


def test_rules_are_added_replaced_muted_and_removed(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alerts.add("late", **LATE, severity="critical", rules=rules)
    added = read_rules(rules)["late"]
    assert (added.threshold, added.for_s, added.match, added.unless) == (120.0, 30.0, "bill*", "*-test")
    with pytest.raises(ConfigError, match="a rule late already"):
        alerts.add("late", **LATE, rules=rules)
    alerts.add("late", **LATE, rules=rules, replace=True, as_json=True)
    alerts.mute("late", for_time="2h", subject="billing", rules=rules)
    assert [(mute.rule, mute.subject) for mute in AlertConfigFile(rules).read().mutes] == [("late", "billing")]
    capsys.readouterr()
    alerts.list_rules(rules=rules)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("late ")]
    assert "lag_s >= 2 min, of bill*, unless *-test" in row
    alerts.mute("late", off=True, subject="billing", rules=rules)
    assert AlertConfigFile(rules).read().mutes == ()
    alerts.remove("late", rules=rules, as_json=True)
    assert json.loads(capsys.readouterr().out)["name"] == "late"
    with pytest.raises(ConfigError, match="there is no rule 'late'"):
        alerts.remove("late", rules=rules)


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        ({"kind": "lagg"}, typer.BadParameter, "is not one of lag_s"),
        ({"threshold": "5m"}, typer.BadParameter, "not a number of records"),
        ({"threshold": "0"}, ConfigError, "always holds"),
        ({"threshold": "nan"}, ConfigError, "threshold nan"),
        ({"for_time": "5"}, typer.BadParameter, "not a duration"),
        ({"notify": ["pager"]}, ConfigError, "there is no such notifier"),
        ({"severity": "bad"}, ConfigError, "severities warning, critical"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(
    rules: Path, wrong: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        alerts.add("rule", **{"kind": "lag", "threshold": "5", "rules": rules, **wrong})
    assert not rules.exists()


def test_a_mute_says_for_how_long(rules: Path) -> None:
    for wrong in ({}, {"for_time": "2h", "off": True}):
        with pytest.raises(typer.BadParameter, match="--for 2h"):
            alerts.mute("stalled", rules=rules, **wrong)  # type: ignore[arg-type]


def test_notifiers_are_added_listed_without_secrets_and_removed(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notifiers.add("oncall", webhook="https://chat.example/secret", repeat="1d", rules=rules)
    notifiers.add(
        "mail", smtp="mail.example.com:2525", sender="a@example.com", to=["b@example.com"], rules=rules, as_json=True
    )
    notifiers.add("file", log_file="./alerts.log", rules=rules)
    capsys.readouterr()
    notifiers.list_notifiers(rules=rules)
    assert "secret" not in capsys.readouterr().out
    notifiers.list_notifiers(rules=rules, as_json=True)
    rows = {row["notifier"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["oncall"]["type"], rows["oncall"]["repeat_s"]) == ("webhook", 86_400)
    assert rows["mail"]["target"] == "b@example.com by mail.example.com:2525"
    assert "far-behind" in rows["log"]["rules"]
    notifiers.remove("oncall", rules=rules)
    assert [each.name for each in AlertConfigFile(rules).read().notifiers] == ["mail", "file"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "give one of"),
        ({"webhook": "https://a.example", "log_file": "x"}, "give one of"),
        ({"webhook": "https://a.example", "sender": "a@example.com"}, "cannot be combined with --webhook"),
        ({"log_file": "x", "secret_env": "X"}, "cannot be combined with --log-file"),
        ({"smtp": "mail.example.com"}, "mail needs --sender and --to"),
        ({"smtp": "mail:x", "sender": "a@b.example", "to": ["c@d.example"]}, "HOST:PORT"),
        ({"webhook": "http://a.example"}, "use https"),
    ],
)
def test_a_notifier_that_cannot_be_meant_is_refused(rules: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((typer.BadParameter, ConfigError), match=said):
        notifiers.add("x", rules=rules, **wrong)


def test_a_notifier_is_tried_and_a_failure_ends_with_1(run: Command, rules: Path, webhook: Hook) -> None:
    write_rules(rules, notifiers=(WebhookSettings(name="oncall", url=webhook.url),))
    assert run.well("alerts", "test", "oncall", "--rules", str(rules), "--json").json["remark"] is None
    assert webhook.next().json["status"] == "test"
    webhook.status = 500
    refused = run("alerts", "test", "oncall", "--rules", str(rules))
    assert (refused.code, "answered 500" in refused.err) == (1, True)


def test_a_check_ends_with_1_when_something_is_wrong(run: Command, rules: Path, behind: str) -> None:
    limit = Rule(name="behind", kind=RuleKind.LAG, threshold=7, match=behind, for_s=3600)
    write_rules(rules, limit)
    well = run("alerts", "check", "--look-for", "0", "--rules", str(rules))
    assert (well.code, well.err.strip()) == (0, "Nothing is wrong.")
    write_rules(rules, msgspec.structs.replace(limit, threshold=6.0))
    wrong = run("alerts", "check", "--look-for", "0", "--rules", str(rules), "--json")
    assert wrong.code == 1
    (state,) = wrong.json
    assert (state["rule"], state["subject"], state["value"]) == ("behind", behind, 6)


def test_what_stands_still_is_seen_from_one_check_to_the_next(
    server: Penstock, rules: Path, behind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"kafka://{server.bootstrap}"
    write_rules(rules, Rule(name="stands", kind=RuleKind.STALLED, threshold=3600, match=behind))
    assert look_and_check(AlertConfigFile(rules), url, 0.0, [], None, None) == []
    remembered = rules.with_name("alerts.check.json")
    memory = json.loads(remembered.read_text())
    memory["at_ms"] -= 3_600_000
    memory["good_ms"] -= 3_600_000
    remembered.write_text(json.dumps(memory))
    (state,) = look_and_check(AlertConfigFile(rules), url, 0.0, [], None, None)
    assert "has committed nothing" in state.text
    remembered.write_text("{")
    assert look_and_check(AlertConfigFile(rules), url, 0.0, [], None, None) == []
    assert "cannot be read" in capsys.readouterr().err


def test_a_stream_that_is_away_is_what_is_wrong_and_no_error(rules: Path) -> None:
    (state,) = look_and_check(AlertConfigFile(rules), "kafka://127.0.0.1:1", 0.0, [], None, None)
    assert state.rule == "stream-away"


def test_a_broken_file_of_rules_is_named(run: Command, rules: Path) -> None:
    rules.write_text('{"rulez": []}')
    done = run("alerts", "--rules", str(rules))
    assert (done.code, "`rulez`" in done.err, str(rules) in done.err) == (1, True, True)


@pytest.mark.parametrize("url", ["log:./data", "kafka://broker.example:9092,other:9093", "kafka://[::1]:19092"])
def test_the_command_and_the_console_use_the_same_file(url: str) -> None:
    assert rules_path(url) == default_state(url) / "alerts.json"


@pytest.fixture
def watching(run: Command, rules: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        started.append(run.start("alerts", "watch", "--every", "200ms", "--rules", str(rules), *options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_of_two_that_watch_one_tells_and_when_it_is_killed_the_other_goes_on(
    rules: Path,
    behind: str,
    webhook: Hook,
    watching: Callable[..., subprocess.Popen[str]],
    stream: penstock.Connection,
    numbers: str,
) -> None:
    write_rules(
        rules,
        Rule(name="behind", kind=RuleKind.LAG, threshold=6, match=behind, quiet_s=0, notify=("oncall",)),
        notifiers=(WebhookSettings(name="oncall", url=webhook.url),),
    )
    first = watching()
    assert webhook.next().json["alerts"][0]["subject"] == behind
    second = watching("--json")
    assert second.stdout is not None
    assert json.loads(second.stdout.readline())["phase"] == "firing"
    memory = MemoryFile(rules.with_name("alerts.state.json"))
    eventually("it is remembered who was told", lambda: memory.read()[0].ledger[0].phase is Phase.FIRING)
    first.kill()
    stream.group_admin().move(behind, {(numbers, 0): 10})
    assert webhook.next(60).json["status"] == "resolved"
    assert json.loads(second.stdout.readline())["phase"] == "resolved"
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 128 + signal.SIGTERM
    assert webhook.taken.empty()


def test_a_watch_may_end_by_itself(watching: Callable[..., subprocess.Popen[str]]) -> None:
    process = watching("--for", "300ms")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Watching kafka://" in err
