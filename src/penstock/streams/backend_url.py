"""URLs of backends other than Kafka: where the server is, and settings behind the question mark.

    redis://user:password@host:6379/0?max_length=1000000&connect_timeout_s=5

A backend declares its settings as a frozen dataclass with a default for each. A setting may stand in the URL, or be an
option of `connect` or `open_queue`, which wins. Everything is checked when the URL is opened.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import ConfigError, UrlError
from penstock.streams.url import Host, without_password

_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")

_LONGEST_PASSWORD: Final = 1 << 16

S = TypeVar("S")


Setting = str | int | float | bool | None
"""The value of a setting, as an option of `open_queue` or `open_channel`; None: as the URL says, or the default."""


@dataclass(frozen=True, slots=True)
class BackendUrl:
    """The parts of a URL."""

    scheme: str
    hosts: tuple[Host, ...]
    """At least one if the URL has an authority (`//`), else none."""
    path: str
    """Without its first slash, and decoded."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    shown: str = ""
    """The URL without password and settings, for messages."""

    @property
    def host(self) -> Host:
        return self.hosts[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordSettings:
    """Settings for a password that is not in the URL. The user is that of the URL."""

    password_env: str | None = None
    """The environment variable with the password, which is then not in the URL."""
    password_file: str | None = None
    """A file with the password, which is then not in the URL. It is read for each connection, so that the password can
    be replaced while the program runs."""

    def password_of(self, url: BackendUrl) -> str | None:
        """The present password for a new connection. ConfigError if it cannot be had."""
        given = [name for name in ("password_env", "password_file") if getattr(self, name) is not None]
        if not given:
            return url.password
        if len(given) > 1 or url.password is not None:
            given += ["the password in the URL"] if url.password is not None else []
            raise ConfigError(f"{url.shown}: {' and '.join(given)} exclude each other: choose one")
        if url.user is None:
            raise ConfigError(f"{url.shown}: {given[0]} needs a user in the URL: {url.scheme}://USER@{url.host}/...")
        if self.password_env is not None:
            return _one_line(os.environ.get(self.password_env, ""), f"the environment variable {self.password_env}")
        try:
            with open(Path(self.password_file or "").expanduser(), encoding="utf-8") as opened:
                return _one_line(opened.read(_LONGEST_PASSWORD), f"password_file={self.password_file}")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"{url.shown}: password_file={self.password_file} cannot be read: {reason}") from None

    @property
    def password_may_change(self) -> bool:
        """Whether the next connection may have another password than this one."""
        return self.password_env is not None or self.password_file is not None


def _one_line(text: str, whose: str) -> str:
    """A password without the line end behind it."""
    password = text.rstrip("\r\n")
    if not password or any(character in password for character in "\r\n\0"):
        raise ConfigError(f"{whose} must hold the password, in one line")
    return password


def parse_backend_url(url: str, default_port: int | None = None) -> BackendUrl:
    """The parts of a URL. UrlError says what is wrong with it. `default_port` is needed if the URL has hosts."""
    shown = without_password(url).partition("?")[0]
    parts = urlsplit(url.strip())
    who, _, where = parts.netloc.rpartition("@")
    user, _, password = who.partition(":")
    hosts = tuple(_host(text, shown, default_port) for text in where.split(",")) if where else ()
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in parameters:
            raise UrlError(f"{shown!r} has {name} twice")
        parameters[name] = value
    return BackendUrl(
        scheme=parts.scheme.lower(),
        hosts=hosts,
        path=unquote(parts.path.removeprefix("/") if parts.netloc else parts.path),
        user=unquote(user) or None,
        password=unquote(password) or None,
        parameters=parameters,
        shown=shown,
    )


def settings_of(url: BackendUrl, kind: type[S], options: Mapping[str, Any]) -> S:
    """The settings of a backend, a dataclass: from the URL, and from options that are not None, which win.

    ConfigError names an unknown setting, or one whose value has the wrong type; the dataclass may check more.
    """
    hints = typing.get_type_hints(kind)
    known = [each.name for each in dataclasses.fields(kind) if each.init]  # type: ignore[arg-type]
    given = {name: value for name, value in options.items() if value is not None}
    for name in (*url.parameters, *given):
        if name not in known:
            raise ConfigError(f"{url.shown} has no setting {name!r}; {url.scheme}: has {', '.join(sorted(known))}")
    values = {name: _converted(name, value, hints[name], url.shown) for name, value in url.parameters.items()}
    for name, value in given.items():
        values[name] = _checked(name, value, hints[name], url.shown)
    return kind(**values)


def check_counts(settings: object, *names: str) -> None:
    """Raise ConfigError unless each of these settings is 1 or more, or None."""
    _check_each(settings, names, lambda value: value >= 1, "must be an integer >= 1")


def check_positive(settings: object, *names: str) -> None:
    """Raise ConfigError unless each of these settings is more than 0, or None."""
    _check_each(settings, names, lambda value: value > 0, "must be positive")


def check_seconds(settings: object, *names: str) -> None:
    """Raise ConfigError unless each of these settings is more than 0 and finite, or None."""
    _check_each(settings, names, lambda value: 0 < value < math.inf, "must be a positive number of seconds")


def check_not_negative(settings: object, *names: str) -> None:
    _check_each(settings, names, lambda value: value >= 0, "must not be negative")


def _check_each(settings: object, names: Sequence[str], fits: Callable[[float], bool], must: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not fits(value):
            raise ConfigError(f"{name}={value!r} {must}")


def check_tls(url: BackendUrl, settings: object, tls_scheme: str, *names: str) -> None:
    """ConfigError if one of these settings for TLS is given, and the scheme of the URL is one without TLS."""
    defaults = {each.name: each.default for each in dataclasses.fields(settings)}  # type: ignore[arg-type]
    given = [name for name in names if getattr(settings, name) != defaults[name]]
    if given and url.scheme != tls_scheme:
        are = "is for TLS" if len(given) == 1 else "are for TLS"
        raise ConfigError(
            f"{url.shown}: {', '.join(given)} {are}, and {url.scheme}:// connects without: write {tls_scheme}://"
        )


def check_key_has_certificate(settings: object, key: str, certificate: str) -> None:
    """ConfigError if the file of a private key is given without that of its certificate."""
    if getattr(settings, key) is not None and getattr(settings, certificate) is None:
        raise ConfigError(f"{key} needs {certificate}, the certificate to which the key belongs")


def name_in_url(url: str) -> str:
    """The last part of a URL or path, in the characters that the name of a topic may have; "" if there is none."""
    return re.sub(r"[^a-zA-Z0-9._-]", "-", re.split(r"[/:]", without_password(url).partition("?")[0])[-1])


def _host(text: str, shown: str, default_port: int | None) -> Host:
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        name, port = text, ""
    if port and not (port.isdecimal() and 1 <= int(port) <= 65535):
        raise UrlError(f"{text!r} in {shown!r} is not HOST:PORT")
    if not name or (not port and default_port is None):
        raise UrlError(f"{text!r} in {shown!r} is not HOST:PORT")
    return Host(name.strip("[]"), int(port) if port else int(default_port or 0))


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a field may have: those of a union, and those of a Literal's values."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for each in typing.get_args(hint) for kind in _kinds(each))
    if typing.get_origin(hint) is typing.Literal:
        return tuple({type(each) for each in typing.get_args(hint)})
    return (hint,)


def _converted(name: str, text: str, hint: Any, shown: str) -> Any:
    """A value from the text of a URL."""
    kinds = _kinds(hint)
    if bool in kinds and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in kinds:
        return _checked(name, text, hint, shown)
    raise ConfigError(f"{name}={text!r} in {shown} must be {_described(hint)}")


def _checked(name: str, value: Any, hint: Any, shown: str) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        fits = value in typing.get_args(hint)
    else:
        kinds = _kinds(hint)
        fits = type(value) in kinds or (float in kinds and type(value) is int)
    if not fits:
        raise ConfigError(f"{name}={value!r} for {shown} must be {_described(hint)}")
    return value


def _described(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    return " or ".join(names.get(kind, "empty") for kind in _kinds(hint))
