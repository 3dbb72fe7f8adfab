"""`penstock console` as a process: who is let in, read-only, and its end."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from penstock.cli.commands import console as console_command
from penstock.errors import MissingExtraError
from tests.cli.running import Command
from tests.console.web.console_process import ConsoleProcess

pytestmark = pytest.mark.xdist_group("chromium")


def handshake(address: str, *, host: str | None = None, origin: str | None) -> str:
    """The first line that the console answers to a WebSocket's handshake."""
    where = urlsplit(address)
    assert where.hostname is not None
    lines = [
        "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1",
        f"Host: {host or where.netloc}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    ]
    lines += [] if origin is None else [f"Origin: {origin}"]
    with socket.create_connection((where.hostname, where.port or 80), timeout=20) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return connection.recv(200).decode("latin-1").splitlines()[0]


def test_a_websocket_of_another_page_is_refused_by_the_real_server(console: ConsoleProcess) -> None:
    assert " 101 " in handshake(console.address, origin=console.address)
    assert " 403 " in handshake(console.address, origin="http://evil.example")
    assert " 403 " in handshake(console.address, origin=None)
    assert " 403 " in handshake(console.address, host="evil.example", origin="http://evil.example")


def test_with_a_password_nothing_is_seen_before_signing_in(page: Page, filled_log: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    with ConsoleProcess(tmp_path / "console", filled_log, "--read-only", "--password-file", str(password)) as console:
        page.goto(f"{console.address}/topics/orders?tab=config")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.get_by_label("Password").fill("correct horse")
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{console.address}/topics/orders?tab=config")
        expect(page.get_by_text("Read-only", exact=True)).to_be_visible()
        expect(page.get_by_role("button", name="Produce")).to_have_count(0)
        other_tab = page.context.new_page()
        other_tab.goto(f"{console.address}/topics")
        expect(other_tab.get_by_role("link", name="orders")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(other_tab.get_by_role("heading", name="Sign in")).to_be_visible()
        other_tab.get_by_label("Password").fill("correct horse")
        other_tab.get_by_role("button", name="Sign in").click()
        expect(other_tab.locator(".dot-good")).to_be_visible()
        assert console.process.terminate() == 143
        assert "Traceback" not in console.process.output()
    # Sessions are gone with the console that had them. A page that finds the next one there is sent to the login.
    again = ("--listen", urlsplit(console.address).netloc, "--password-file", str(password))
    with ConsoleProcess(tmp_path / "console", filled_log, *again):
        expect(other_tab.get_by_role("heading", name="Sign in")).to_be_visible()


def test_it_does_not_listen_for_everybody_without_a_login() -> None:
    done = Command("kafka://127.0.0.1:1")("console", "--listen", "0.0.0.0:0")
    assert done.code == 1
    assert "--password-file" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("content", "told"), [("", "has an empty first line"), ("short", "8 characters")])
def test_a_password_that_is_none_is_refused(content: str, told: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(content)
    done = Command("kafka://127.0.0.1:1")("console", "--password-file", str(password))
    assert done.code == 1
    assert told in done.err


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nicegui", None)
    monkeypatch.delitem(sys.modules, "penstock.console.web.app", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[console\]'"):
        console_command.console(url="kafka://127.0.0.1:1", listen="127.0.0.1:0")
