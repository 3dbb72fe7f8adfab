"""URLs of backends: their parts, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from penstock.errors import ConfigError, UrlError
from penstock.streams.backend_url import parse_backend_url, settings_of
from penstock.streams.url import Host


@dataclass(frozen=True)
class Settings:
    count: int = 1
    wait_s: float = 1.0
    is_tls: bool = False
    name: str | None = None
    mode: Literal["fast", "safe"] = "safe"


def test_a_url_has_hosts_user_path_and_settings() -> None:
    url = parse_backend_url("redis://me:se%40cret@one:1,two/0/x%20y?count=5&wait_s=2&is_tls=yes&name=a%26b", 6379)
    assert (url.scheme, url.hosts, url.path) == ("redis", (Host("one", 1), Host("two", 6379)), "0/x y")
    assert (url.user, url.password) == ("me", "se@cret")
    assert settings_of(url, Settings, {}) == Settings(5, 2.0, True, "a&b")
    assert "se%40cret" not in url.shown
    assert "se@cret" not in repr(url)


def test_a_path_alone_needs_no_host() -> None:
    url = parse_backend_url("file:./folder/x.jsonl?count=2")
    assert (url.hosts, url.path) == ((), "./folder/x.jsonl")
    assert parse_backend_url("file:/folder/x").path == "/folder/x"
    assert parse_backend_url("nats://[::1]:4222", 1).host == Host("::1", 4222)
    assert parse_backend_url("nats://[::1]", 4222).host == Host("::1", 4222)


def test_an_option_wins_over_the_url() -> None:
    url = parse_backend_url("x:?count=5")
    assert settings_of(url, Settings, {"count": 7, "name": None}) == Settings(7)
    assert settings_of(url, Settings, {"wait_s": 3}) == Settings(5, 3)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x:?cuont=5", {}, "no setting 'cuont'.*has count, is_tls, mode, name, wait_s"),
        ("x:?count=five", {}, "count='five' .* must be an integer"),
        ("x:?wait_s=", {}, "wait_s='' .* must be a number"),
        ("x:?is_tls=maybe", {}, "is_tls='maybe' .* must be true or false"),
        ("x:?mode=slow", {}, "mode='slow' .* must be one of fast, safe"),
        ("x:", {"count": "5"}, "count='5' .* must be an integer"),
        ("x:", {"count": True}, "count=True .* must be an integer"),
        ("x:", {"other": 1}, "no setting 'other'"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_name(text: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(parse_backend_url(text), Settings, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x://host:port", "'host:port' in 'x://host:port' is not HOST:PORT"),
        ("x://host:99999", "is not HOST:PORT"),
        ("x://host", "is not HOST:PORT"),
        ("x://h:1?a=1&a=2", "has a twice"),
    ],
)
def test_a_broken_url_is_refused(text: str, message: str) -> None:
    with pytest.raises(UrlError, match=message):
        parse_backend_url(text)
