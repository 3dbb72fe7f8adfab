"""Settings of notifiers, as stored in the file of rules. Secrets are named, not stored."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock.errors import ConfigError, NotifyError
from penstock.model.addresses import is_loopback
from penstock.observe.alerts.rules import LONGEST_S, check_name

SHORTEST_REPEAT_S: Final = 60.0
LONGEST_TIMEOUT_S: Final = 60.0
LONGEST_SECRET_BYTES: Final = 64 * 1024
PORTS: Final = {"starttls": 587, "ssl": 465, "none": 25}


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    name: str
    repeat_s: float = 4 * 3600.0
    """Repeat after this time that an alert still fires; 0: never."""

    def __post_init__(self) -> None:
        check_name(self.name, "a notifier")
        if self.repeat_s != 0 and not SHORTEST_REPEAT_S <= self.repeat_s <= LONGEST_S:
            raise ConfigError(
                f"notifier {self.name}: repeat_s {self.repeat_s:g} must be 0 (never) or {SHORTEST_REPEAT_S:.0f} or more"
            )


class LogSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="log"):
    file: str | None = None
    """Where the lines are appended; None: standard error of the process that evaluates the rules."""

    @property
    def target(self) -> str:
        return self.file or "standard error"


class WebhookSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="webhook"):
    url: str | None = None
    url_env: str | None = None
    """The environment variable with the URL, for a URL that is a secret."""
    secret_env: str | None = None
    """The environment variable with the secret that signs messages."""
    secret_file: str | None = None
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        what = f"notifier {self.name}"
        _exactly_one(what, url=self.url, url_env=self.url_env)
        _at_most_one(what, secret_env=self.secret_env, secret_file=self.secret_file)
        _check_timeout(what, self.timeout_s)
        if self.url is not None:
            check_url(self.url, what)

    @property
    def target(self) -> str:
        """The host only: what follows it is often a secret."""
        if self.url is None:
            return f"the URL in ${self.url_env}"
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/…"


class EmailSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="email"):
    host: str
    sender: str
    to: tuple[str, ...]
    port: int | None = None
    """None: 587 for starttls, 465 for ssl, 25 for none."""
    security: Literal["starttls", "ssl", "none"] = "starttls"
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        what = f"notifier {self.name}"
        _at_most_one(what, password_env=self.password_env, password_file=self.password_file)
        _check_timeout(what, self.timeout_s)
        if (self.user is None) != (self.password_env is None and self.password_file is None):
            raise ConfigError(f"{what}: user and password_env or password_file go together: give both or neither")
        if self.user is not None and self.security == "none" and not is_loopback(self.host):
            raise ConfigError(
                f"{what}: the password would be sent to {self.host} in clear text: use security starttls or ssl"
            )
        if self.security not in PORTS:
            raise ConfigError(f"{what}: security {self.security!r} is not one of {', '.join(PORTS)}")
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigError(f"{what}: port {self.port} must be from 1 to 65535")
        if not self.host or not self.to:
            raise ConfigError(f"{what}: host and to must not be empty: name the mail server and the recipients")
        for address in (self.sender, *self.to):
            if address.count("@") != 1 or not address.isprintable() or any(each in address for each in " ,;<>"):
                raise ConfigError(f"{what}: {address!r} is not an address such as oncall@example.com")

    @property
    def target(self) -> str:
        return f"{', '.join(self.to)} by {self.host}:{self.port or PORTS[self.security]}"


NotifierSettings = LogSettings | WebhookSettings | EmailSettings


def type_of(settings: NotifierSettings) -> str:
    """log, webhook or email."""
    return str(settings.__struct_config__.tag)


def check_url(url: str, what: str) -> None:
    """Raise ConfigError for a URL that must not be posted to."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{what}: {url!r} is not a URL: {error}") from error
    if parts.scheme not in ("https", "http") or not host or not url.isprintable() or " " in url:
        raise ConfigError(f"{what}: {url!r} is not a URL such as https://example.com/hook")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{what}: the URL must not contain a user or password: sign messages with secret_env")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(f"{what}: http://{host} is not encrypted: use https, or http on loopback")


def _exactly_one(what: str, **given: str | None) -> None:
    if sum(value is not None for value in given.values()) != 1:
        raise ConfigError(f"{what}: give one of {' and '.join(given)}")


def _at_most_one(what: str, **given: str | None) -> None:
    if all(value is not None for value in given.values()):
        raise ConfigError(f"{what}: give {' or '.join(given)}, not both")


def _check_timeout(what: str, timeout_s: float) -> None:
    if not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise ConfigError(f"{what}: timeout_s {timeout_s} must be above 0 and at most {LONGEST_TIMEOUT_S:.0f} s")


def secret_of(what: str, env: str | None, file: str | None) -> str | None:
    """A secret from its environment variable or file, read each time so that a new one takes effect; else None."""
    if env is not None:
        value = os.environ.get(env)
        if not value:
            raise NotifyError(f"{what}: the environment variable {env} is not set")
        return value
    if file is None:
        return None
    try:
        with open(Path(file).expanduser(), encoding="utf-8") as opened:
            secret = opened.read(LONGEST_SECRET_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotifyError(f"{what}: the secret in {file} cannot be read: {error}") from error
    if not secret:
        raise NotifyError(f"{what}: {file} is empty")
    return secret
