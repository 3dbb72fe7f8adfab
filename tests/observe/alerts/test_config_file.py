"""The file of rules: read, changed and written by several at once, and by people with editors."""

from __future__ import annotations

import concurrent.futures
import json
import stat
from pathlib import Path

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.observe.alerts import DEFAULT_RULES, AlertConfig, LogSettings, Rule, RuleKind, WebhookSettings
from penstock.observe.alerts.config_file import AlertConfigFile, decode

LAG = Rule(name="lag", kind=RuleKind.LAG, threshold=5)
HOOK = WebhookSettings(name="hook", url="https://example.com/hook")


@pytest.fixture
def file(tmp_path: Path) -> AlertConfigFile:
    return AlertConfigFile(tmp_path / "alerts.json")


def test_without_a_file_the_default_rules_hold_and_none_is_written(file: AlertConfigFile) -> None:
    assert file.read().rules == DEFAULT_RULES
    assert not file.path.exists()


def test_what_is_written_is_read_back(file: AlertConfigFile) -> None:
    written = file.change(lambda config: config.with_notifier(HOOK).with_rule(LAG))
    assert AlertConfigFile(file.path).read() == written
    assert written.rules == (*DEFAULT_RULES, LAG)
    assert [notifier.name for notifier in written.all_notifiers] == ["log", "hook"]


def test_the_file_is_for_its_owner_only_unless_somebody_has_opened_it_to_others(file: AlertConfigFile) -> None:
    file.change(lambda config: config.with_rule(LAG))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.path.chmod(0o640)
    file.change(lambda config: config.without_rule("lag"))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(file: AlertConfigFile, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("{}")
    file.path.symlink_to(tmp_path / "real.json")
    file.change(lambda config: config.with_rule(LAG))
    assert file.path.is_symlink()
    assert "lag" in (tmp_path / "real.json").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"rule": []}', "`rule`"),
        ('{"rules": [{"name": "x", "kind": "lag", "threshold": 1, "treshold": 2}]}', "`treshold`"),
        ('{"notifiers": [{"type": "pager", "name": "x"}]}', "pager"),
        ('{"notifiers": [{"type": "webhook", "name": "x", "url": "https://x.example", "secret": "s"}]}', "`secret`"),
        ('{"rules": [{"name": "x", "kind": "lag", "threshold": 1, "notify": ["pager"]}]}', "there are log"),
        ('{"rules": [{"name": "x", "kind": "lag", "threshold": -1}]}', "rule x: threshold"),
        ("{", "malformed|truncated"),
        ("", "truncated"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(file: AlertConfigFile, content: str, said: str) -> None:
    file.path.write_text(content)
    with pytest.raises(ConfigError, match=said) as caught:
        file.read()
    assert str(file.path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(file: AlertConfigFile) -> None:
    file.path.write_bytes(b'{"rules": [{"name": "\xff"}]}')
    with pytest.raises(ConfigError, match="not a valid file of rules"):
        file.read()


def test_a_change_that_would_not_fit_together_is_not_written(file: AlertConfigFile) -> None:
    before = file.change(lambda config: config.with_rule(LAG))
    with pytest.raises(ConfigError, match="there is no such notifier"):
        file.change(lambda config: config.with_rule(msgspec.structs.replace(LAG, name="other", notify=("pager",))))
    assert file.read() == before


def test_names_are_taken_once(file: AlertConfigFile) -> None:
    with pytest.raises(ConfigError, match="a rule lag already"):
        AlertConfig().with_rule(LAG).with_rule(LAG)
    replaced = AlertConfig().with_rule(LAG).with_rule(msgspec.structs.replace(LAG, threshold=9.0), replace=True)
    assert replaced.rule("lag").threshold == 9
    with pytest.raises(ConfigError, match="two rules have the name lag"):
        AlertConfig(rules=(LAG, LAG))


def test_what_is_not_there_is_not_removed_and_the_names_that_are_there_are_told() -> None:
    with pytest.raises(ConfigError, match=r"no rule 'lagg'; there are: lag"):
        AlertConfig(rules=(LAG,)).without_rule("lagg")


def test_a_notifier_that_rules_need_stays() -> None:
    config = AlertConfig(rules=(msgspec.structs.replace(LAG, notify=("hook",)),), notifiers=(HOOK,))
    with pytest.raises(ConfigError, match="used by lag"):
        config.without_notifier("hook")
    assert config.without_rule("lag").without_notifier("hook").notifiers == ()
    with pytest.raises(ConfigError, match="built in"):
        config.without_notifier("log")


def test_the_built_in_log_can_be_given_a_file_and_taken_back() -> None:
    config = AlertConfig().with_notifier(LogSettings(name="log", file="alerts.log"))
    assert config.all_notifiers == (LogSettings(name="log", file="alerts.log"),)
    assert config.without_notifier("log").notifier("log").target == "standard error"


def test_a_mute_is_for_a_rule_or_one_of_its_subjects_and_runs_out() -> None:
    config = AlertConfig(rules=(LAG,)).muted("lag", 2_000, "billing", 1_000).muted("lag", 1_500, "*", 1_000)
    assert config.muted_until_ms("lag", "billing", 1_000) == 2_000
    assert config.muted_until_ms("lag", "shop", 1_000) == 1_500
    assert config.muted_until_ms("lag", "shop", 1_500) is None
    assert config.muted("lag", 0, "billing", 1_600).mutes == ()
    with pytest.raises(ConfigError, match="no rule"):
        config.muted("nothing", 2_000, "*", 1_000)


def test_changes_of_several_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "alerts.json"

    def add(number: int) -> None:
        AlertConfigFile(path).change(
            lambda config: config.with_rule(msgspec.structs.replace(LAG, name=f"lag-{number}"))
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert len(AlertConfigFile(path).read().rules) == len(DEFAULT_RULES) + 24


def test_a_file_is_known_to_have_changed_by_whoever_has_written_it(file: AlertConfigFile) -> None:
    assert not file.has_changed()
    AlertConfigFile(file.path).change(lambda config: config.with_rule(LAG))
    assert file.has_changed()
    file.read()
    assert not file.has_changed()
    file.path.unlink()
    assert file.has_changed()


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    file = AlertConfigFile(tmp_path / "in-the-way" / "alerts.json")
    with pytest.raises(ConfigError, match="in-the-way"):
        file.change(lambda config: config.with_rule(LAG))


def test_the_file_is_plain_json_that_people_can_edit(file: AlertConfigFile) -> None:
    file.change(lambda config: config.with_rule(LAG))
    document = json.loads(file.path.read_text())
    assert document["rules"][-1] == {
        "name": "lag",
        "kind": "lag",
        "threshold": 5.0,
        "match": "*",
        "unless": "",
        "for_s": 0.0,
        "quiet_s": 60.0,
        "severity": "warning",
        "notify": ["log"],
    }
    shortest = decode(b'{"rules": [{"name": "lag", "kind": "lag", "threshold": 5}]}', "it")
    assert shortest.rules == (LAG,)
