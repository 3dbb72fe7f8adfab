"""Passwords, tokens, sessions, and making those wait who guess."""

from __future__ import annotations

import pytest

from penstock.console.web.access import FREE_ATTEMPTS, LONGEST_WAIT_S, SESSION_S, Access, TooManyAttempts
from penstock.errors import ConfigError, SignInError
from penstock.model.addresses import is_loopback

PASSWORD, TOKEN = "correct horse", "0123456789abcdef0123456789"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_secret_everybody_is_local() -> None:
    access = Access()
    session = access.session(None)
    assert not access.needs_login
    assert session is not None
    assert session.name == "local"


def test_the_password_and_the_token_open_sessions_that_are_told_apart() -> None:
    access = Access(password=PASSWORD, token=TOKEN)
    by_password, by_token = access.session(access.sign_in(PASSWORD, "a")), access.session(access.sign_in(TOKEN, "a"))
    assert by_password is not None
    assert by_token is not None
    assert (by_password.name, by_token.name) == ("password", "token")
    assert access.bearer(TOKEN, "a").name == "token"


def test_nothing_else_opens_a_session() -> None:
    access = Access(password=PASSWORD)
    with pytest.raises(SignInError):
        access.sign_in(PASSWORD.upper(), "a")
    with pytest.raises(SignInError):
        access.bearer(PASSWORD, "b")  # a password is no token
    for id in (None, "", "guess", "0" * 64):
        assert access.session(id) is None


def test_a_session_ends_by_signing_out_and_by_itself() -> None:
    clock = Clock()
    access = Access(password=PASSWORD, clock_s=clock)
    first, second = access.sign_in(PASSWORD, "a"), access.sign_in(PASSWORD, "a")
    access.sign_out(first)
    assert access.session(first) is None
    assert access.session(second) is not None
    clock.now_s += SESSION_S
    assert access.session(second) is None


def test_who_guesses_waits_longer_every_time_and_even_the_right_password_waits() -> None:
    clock = Clock()
    access = Access(password=PASSWORD, clock_s=clock)
    for _ in range(FREE_ATTEMPTS - 1):
        with pytest.raises(SignInError):
            access.sign_in("wrong", "10.0.0.1")
    waits = []
    for _ in range(10):
        with pytest.raises(SignInError):
            access.sign_in("wrong", "10.0.0.1")
        with pytest.raises(TooManyAttempts) as refused:
            access.sign_in(PASSWORD, "10.0.0.1")
        waits.append(refused.value.wait_s)
        clock.now_s += refused.value.wait_s + 0.001
    assert waits[:4] == pytest.approx([1, 2, 4, 8])
    assert waits[-1] == pytest.approx(LONGEST_WAIT_S)


def test_who_guesses_does_not_make_others_wait() -> None:
    clock = Clock()
    access = Access(password=PASSWORD, clock_s=clock)
    for _ in range(FREE_ATTEMPTS):
        with pytest.raises(SignInError):
            access.sign_in("wrong", "10.0.0.1")
    with pytest.raises(TooManyAttempts):
        access.sign_in(PASSWORD, "10.0.0.1")
    access.sign_in(PASSWORD, "10.0.0.2")


def test_a_machine_with_many_ipv6_addresses_is_one_guesser() -> None:
    access = Access(token=TOKEN, clock_s=Clock())
    for last in range(FREE_ATTEMPTS):
        with pytest.raises(SignInError):
            access.bearer("wrong", f"2001:db8::{last:x}")
    with pytest.raises(TooManyAttempts):
        access.bearer(TOKEN, "2001:db8::ffff")


def test_a_secret_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="8 characters"):
        Access(password="short")
    with pytest.raises(ConfigError, match="openssl rand"):
        Access(token="short-token")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)],
)
def test_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
