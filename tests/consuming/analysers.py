"""Analysers that run in other processes, which find them here."""

from __future__ import annotations

import os
import signal
import threading


def double(number: int) -> int:
    return number * 2


def pid(_: object) -> int:
    return os.getpid()


def fail(number: int) -> int:
    raise ValueError(f"no {number}")


def die(number: int) -> int:
    """Ends its process for odd numbers."""
    if number % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang(_: object) -> None:
    threading.Event().wait()


def unpicklable(_: object) -> object:
    return threading.Lock()


async def double_async(number: int) -> int:
    return number * 2
