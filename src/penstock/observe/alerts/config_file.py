"""The file of rules, notifiers and mutes: one JSON document that people, the console and the CLI edit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from penstock.checkpoints.durable_files import locked, replace_file
from penstock.errors import ConfigError
from penstock.observe.alerts.rules import DEFAULT_RULES, Rule
from penstock.observe.alerts.settings import LogSettings, NotifierSettings

LARGEST_BYTES: Final = 4 * 1024 * 1024
BUILT_IN: Final = LogSettings(name="log")
"""The built-in notifier, unless the file defines another of this name."""

Signature = tuple[int, int, int]
Named = TypeVar("Named", Rule, NotifierSettings)


class Mute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No notifications for some alerts for a while. They are still evaluated and shown."""

    rule: str
    until_ms: int
    subject: str = "*"
    """The muted subject; * mutes all of them."""

    def covers(self, rule: str, subject: str) -> bool:
        return self.rule == rule and self.subject in ("*", subject)


class AlertConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file. Raises ConfigError when it is inconsistent."""

    rules: tuple[Rule, ...] = DEFAULT_RULES
    notifiers: tuple[NotifierSettings, ...] = ()
    mutes: tuple[Mute, ...] = ()

    def __post_init__(self) -> None:
        _check_unique("rule", [rule.name for rule in self.rules])
        _check_unique("notifier", [notifier.name for notifier in self.notifiers])
        known = {notifier.name for notifier in self.all_notifiers}
        for rule in self.rules:
            if unknown := [name for name in rule.notify if name not in known]:
                raise ConfigError(
                    f"rule {rule.name} notifies {', '.join(unknown)}, but there is no such notifier; there are "
                    f"{', '.join(sorted(known))}. Add it with `penstock alerts notifiers add`, or name another"
                )

    @property
    def all_notifiers(self) -> tuple[NotifierSettings, ...]:
        """Including the built-in one."""
        if any(notifier.name == BUILT_IN.name for notifier in self.notifiers):
            return self.notifiers
        return (BUILT_IN, *self.notifiers)

    def rule(self, name: str) -> Rule:
        return _named("rule", self.rules, name)

    def notifier(self, name: str) -> NotifierSettings:
        return _named("notifier", self.all_notifiers, name)

    def with_rule(self, rule: Rule, *, replace: bool = False) -> AlertConfig:
        if any(each.name == rule.name for each in self.rules):
            if not replace:
                raise ConfigError(f"there is a rule {rule.name} already: choose another name, or replace it")
            rules = tuple(rule if each.name == rule.name else each for each in self.rules)
        else:
            rules = (*self.rules, rule)
        return msgspec.structs.replace(self, rules=rules)

    def without_rule(self, name: str) -> AlertConfig:
        self.rule(name)
        return msgspec.structs.replace(
            self,
            rules=tuple(rule for rule in self.rules if rule.name != name),
            mutes=tuple(mute for mute in self.mutes if mute.rule != name),
        )

    def with_notifier(self, notifier: NotifierSettings, *, replace: bool = False) -> AlertConfig:
        if any(each.name == notifier.name for each in self.notifiers) and not replace:
            raise ConfigError(f"there is a notifier {notifier.name} already: choose another name, or replace it")
        others = tuple(each for each in self.notifiers if each.name != notifier.name)
        return msgspec.structs.replace(self, notifiers=(*others, notifier))

    def without_notifier(self, name: str) -> AlertConfig:
        if self.notifier(name) is BUILT_IN:
            raise ConfigError(f"the notifier {name} is built in: take it out of the rules that name it instead")
        users = [rule.name for rule in self.rules if name in rule.notify]
        if users and name != BUILT_IN.name:
            raise ConfigError(f"notifier {name} is used by {', '.join(users)}: change these rules first")
        return msgspec.structs.replace(self, notifiers=tuple(each for each in self.notifiers if each.name != name))

    def muted(self, rule: str, until_ms: int, subject: str, now_ms: int) -> AlertConfig:
        """A copy with this mute; a time in the past removes one. Expired mutes are dropped."""
        self.rule(rule)
        kept = [mute for mute in self.mutes if mute.until_ms > now_ms and (mute.rule, mute.subject) != (rule, subject)]
        if until_ms > now_ms:
            kept.append(Mute(rule=rule, until_ms=until_ms, subject=subject))
        return msgspec.structs.replace(self, mutes=tuple(kept))

    def muted_until_ms(self, rule: str, subject: str, now_ms: int) -> int | None:
        until = [mute.until_ms for mute in self.mutes if mute.covers(rule, subject) and mute.until_ms > now_ms]
        return max(until, default=None)


class AlertConfigFile:
    """The file itself. Changes are atomic, also between processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_of: Signature | None = None

    def read(self) -> AlertConfig:
        """Its content; the default rules where there is no file. Raises ConfigError for an unusable file."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                content = file.read(LARGEST_BYTES + 1)
        except FileNotFoundError:
            self._read_of = None
            return AlertConfig()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        self._read_of = (status.st_mtime_ns, status.st_size, status.st_ino)
        if len(content) > LARGEST_BYTES:
            raise ConfigError(f"{self.path} is larger than {LARGEST_BYTES:,} bytes: that cannot be rules for alerts")
        return decode(content, str(self.path))

    def has_changed(self) -> bool:
        """Whether the file differs from the one that was last read, or tried."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return self._read_of is not None
        except OSError:
            return True
        return (status.st_mtime_ns, status.st_size, status.st_ino) != self._read_of

    def change(self, by: Callable[[AlertConfig], AlertConfig]) -> AlertConfig:
        """Read, change and write the file, without losing what another process writes meanwhile."""
        try:
            with locked(self.path):
                changed = by(self.read())
                content = msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n"
                decode(content, str(self.path))  # write only what can be read back
                replace_file(self.path.resolve(), content, is_private=True)  # a webhook URL is often a password
                return self.read()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be changed: {error.strerror}: {error.filename}") from error


def decode(content: bytes, where: str) -> AlertConfig:
    try:
        return msgspec.json.decode(content, type=AlertConfig)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{where} is not a valid file of rules: {error}. Correct it, or move it away to start over"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not a valid file of rules: it is not text") from error


def _check_unique(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two {what}s have the name {name}: rename one of them")


def _named(what: str, found: tuple[Named, ...], name: str) -> Named:
    for each in found:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in found) or "none"
    raise ConfigError(f"there is no {what} {name!r}; there are: {names}")
