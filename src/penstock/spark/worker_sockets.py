"""Sockets between Spark's JVM and its Python processes on this machine, in a folder that only this user may enter.

Over TCP, which is what Spark does by itself, every small job with Python in it takes some 40 ms longer: one side waits
for an acknowledgement before it sends its next few bytes, and the other for more bytes before it acknowledges.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from functools import cache
from typing import Final

ENABLED: Final = "spark.python.unix.domain.socket.enabled"
FOLDER: Final = "spark.python.unix.domain.socket.dir"
LONGEST_FOLDER: Final = 60
"""The path of a socket has at most 107 bytes, and 42 of them are for its name."""


def socket_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """What is to be added to these settings of a session that runs in one process."""
    if ENABLED in settings or FOLDER in settings or not hasattr(socket, "AF_UNIX"):
        return {}
    folder = _folder()
    return {ENABLED: "true", FOLDER: folder} if len(os.fsencode(folder)) <= LONGEST_FOLDER else {}


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="penstock-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # and not one that was forked off
        shutil.rmtree(folder, ignore_errors=True)
