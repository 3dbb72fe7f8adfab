"""What `send` does while the buffer is full."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.model import NewRecord, Receipt
from penstock.model.receipt import call_in
from penstock.producing.engine import Engine

_SLICE_S: Final = 0.05
"""Waits are cut into slices: room may appear between looking and waiting."""


def put_when_full(
    engine: Engine, records: Sequence[NewRecord], receipts: Sequence[Receipt], check_usable: Callable[[], None]
) -> None:
    """Put records that did not fit a moment ago, as `when_full` says. Raises BufferFullError."""
    deadline_s = time.monotonic() + engine.settings.max_block_s
    while not _is_settled(engine, records, receipts):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or engine.pump.is_current_thread():  # a callback would wait for itself
            raise engine.no_room()
        engine.pump.wait_for_news(min(left_s, _SLICE_S))
        check_usable()


async def put_async(
    engine: Engine, records: Sequence[NewRecord], receipts: Sequence[Receipt], check_usable: Callable[[], None]
) -> None:
    """Put records, waiting for room as `put_when_full` does, without blocking the event loop."""
    if await _off_the_loop(engine, functools.partial(engine.try_put, records, receipts)):
        return
    deadline_s = time.monotonic() + engine.settings.max_block_s
    loop = asyncio.get_running_loop()
    while True:  # ends at the deadline
        room = asyncio.Event()
        engine.pump.call_on_room(functools.partial(call_in, loop, room.set))
        if await _off_the_loop(engine, functools.partial(_is_settled, engine, records, receipts)):
            return
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise engine.no_room()
        try:
            await asyncio.wait_for(room.wait(), left_s)
        except TimeoutError:
            continue
        check_usable()


async def _off_the_loop(engine: Engine, put: Callable[[], bool]) -> bool:
    """Run it in a thread if putting waits for the disk."""
    return await asyncio.to_thread(put) if engine.waits_for_disk else put()


def _is_settled(engine: Engine, records: Sequence[NewRecord], receipts: Sequence[Receipt]) -> bool:
    """Do what `when_full` says. False: wait for room and try again."""
    match engine.settings.when_full:
        case "error":
            if engine.try_put(records, receipts):
                return True
            raise engine.no_room()
        case "drop_newest":
            engine.drop_newest(receipts)
            return True
        case "drop_oldest":
            while not engine.try_put(records, receipts):
                if not engine.make_room():
                    return False
            return True
        case "block":
            return engine.try_put(records, receipts)
