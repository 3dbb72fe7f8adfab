"""The threads in which pages call the service, and what a page shows while it waits.

A page is never held back for a slow answer: what takes longer than `AT_ONCE_S` is filled in later, and the page shows
how long it has been waiting. Leaving the page cancels the wait.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from nicegui import Client, background_tasks, ui

Given = ParamSpec("Given")
Result = TypeVar("Result")

AT_ONCE_S: Final = 0.5
"""How long a page is held back for an answer. NiceGUI allows a page 3 s in all."""
SHOWN_FROM_S: Final = 1.0
"""After this time the page shows that it waits."""
_CONNECTED_S: Final = 30.0
"""How long a browser may take to connect to a page that it was sent."""

# Many more than processors: they mostly wait for a broker.
_ASKING: Final = ThreadPoolExecutor(max_workers=32, thread_name_prefix="console-asking")
# Separate threads for what is on disk, which a slow broker must not delay.
_FROM_DISK: Final = ThreadPoolExecutor(max_workers=8, thread_name_prefix="console-from-disk")


async def in_background(ask: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Call `ask` in a thread. The calling page shows how long it has been waiting."""
    return await _answer(_ASKING, functools.partial(ask, *args, **kwargs), is_shown=True)


async def from_disk(ask: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Like `in_background`, for data on the console's own disk: no broker can delay it."""
    return await _answer(_FROM_DISK, functools.partial(ask, *args, **kwargs), is_shown=False)


async def _answer(threads: ThreadPoolExecutor, ask: Callable[[], Result], *, is_shown: bool) -> Result:
    answer = asyncio.get_running_loop().run_in_executor(threads, ask)
    try:
        client = ui.context.client
    except RuntimeError:  # not on a page: a download, or another task
        return await answer
    waits = waits_of(client)
    waits.add(answer, is_shown=is_shown)
    try:
        done, _ = await asyncio.wait({answer}, timeout=AT_ONCE_S)
        if not done and not client.has_socket_connection:
            await _sent(client)
        return await answer
    finally:
        waits.remove(answer)


async def _sent(client: Client) -> None:
    """Send the page to the browser as it is, and continue when the browser has connected."""
    try:
        await client.connected(timeout=_CONNECTED_S)
    except TimeoutError:
        raise asyncio.CancelledError from None  # the page is gone
    if client.is_deleted:
        raise asyncio.CancelledError


class Waits:
    def __init__(self) -> None:
        self._answers: set[asyncio.Future[Any]] = set()
        self._begun_s: dict[asyncio.Future[Any], float] = {}
        """When the broker was asked for them."""
        self._label: ui.label | None = None
        self._is_counting = False

    def draw(self) -> None:
        """Draw the element that shows how long the page has been waiting."""
        self._label = ui.label().classes("waiting").props('role="status"')
        self._label.set_visibility(False)

    def add(self, answer: asyncio.Future[Any], *, is_shown: bool) -> None:
        self._answers.add(answer)
        if not is_shown:
            return
        self._begun_s[answer] = time.monotonic()
        if not self._is_counting and self._label is not None:
            self._is_counting = True
            background_tasks.create(self._count(), name="how long a page waits")

    def remove(self, answer: asyncio.Future[Any]) -> None:
        self._answers.discard(answer)
        self._begun_s.pop(answer, None)
        if not self._begun_s:
            self._hide()

    def give_up(self) -> None:
        """Cancel the waits of a page that is gone."""
        for answer in list(self._answers):
            answer.cancel()

    async def _count(self) -> None:
        try:
            while self._begun_s and self._label is not None and not self._label.is_deleted:
                waited_s = time.monotonic() - min(self._begun_s.values())
                if waited_s >= SHOWN_FROM_S:
                    self._label.set_text(f"Waiting for the broker: {waited_s:.0f} s")
                self._label.set_visibility(waited_s >= SHOWN_FROM_S)
                await asyncio.sleep(SHOWN_FROM_S if waited_s >= SHOWN_FROM_S else SHOWN_FROM_S / 4)
        finally:
            self._is_counting = False
            self._hide()

    def _hide(self) -> None:
        if self._label is not None and not self._label.is_deleted:
            self._label.set_visibility(False)


_WAITS: Final[WeakKeyDictionary[Client, Waits]] = WeakKeyDictionary()


def waits_of(client: Client) -> Waits:
    found = _WAITS.get(client)
    if found is None:
        found = _WAITS[client] = Waits()
        client.on_delete(found.give_up)
    return found
