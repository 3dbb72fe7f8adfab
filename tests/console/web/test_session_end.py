"""When a session ends, so do its pages: nobody who is not signed in any more goes on seeing data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from penstock.console.web import app
from penstock.console.web.access import SESSION_S, Access
from penstock.console.web.security import SESSION_ID

PASSWORD = "correct horse"


class OpenPage:
    """As much of a page's client as ending it takes."""

    def __init__(self, session_id: str | None) -> None:
        self.id = f"client of {session_id}"
        self.request = SimpleNamespace(scope={SESSION_ID: session_id})
        self.scripts: list[str] = []
        self.is_deleted = False

    def run_javascript(self, script: str) -> None:
        self.scripts.append(script)

    def delete(self) -> None:
        self.is_deleted = True


def test_pages_of_a_session_that_has_run_out_are_sent_to_the_login_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    access = Access(password=PASSWORD, clock_s=lambda: now_s)
    first = OpenPage(access.sign_in(PASSWORD, "a"))
    now_s += SESSION_S / 2
    second, local = OpenPage(access.sign_in(PASSWORD, "a")), OpenPage(None)
    pages = {page.id: page for page in (first, second, local)}
    monkeypatch.setattr(app, "Client", SimpleNamespace(instances=pages))
    monkeypatch.setattr(app, "SESSIONS_EVERY_S", 0.001)
    monkeypatch.setattr(app, "GRACE_S", 0.001)

    async def until_it_is(is_so: Callable[[], bool], looking: asyncio.Task[None], timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not is_so():
                assert not looking.done()
                await asyncio.sleep(0.001)

    async def watch() -> None:
        nonlocal now_s
        looking = asyncio.ensure_future(app._end_pages_of_the_past(access))
        now_s += SESSION_S / 2
        await until_it_is(lambda: first.is_deleted, looking)
        assert set(first.scripts) == {"location.reload()"}
        assert not second.scripts
        now_s += SESSION_S / 2
        await until_it_is(lambda: second.is_deleted, looking)
        looking.cancel()

    asyncio.run(watch())
    assert not local.scripts, "where nobody signs in, no session ends"
