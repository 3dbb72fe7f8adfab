"""The threads in which pages ask the service, so that no page waits for another's."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

# Many more than processors: they spend their time waiting for a broker.
_THREADS: Final = ThreadPoolExecutor(max_workers=32, thread_name_prefix="console-page")


async def in_background(ask: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """What `ask` answers, called in a thread."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, functools.partial(ask, *args, **kwargs))
