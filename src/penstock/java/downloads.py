"""The cache folder for what is downloaded or created once, and the programs that fill it."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
REASON_LENGTH: Final = 300

Tell = Callable[[str], None]
"""Called with a line of text for people at each step."""


def silent(_: str) -> None:
    pass


def cache_folder() -> Path:
    """`$PENSTOCK_CACHE`, else Penstock's folder in the user's cache folder."""
    named = os.environ.get("PENSTOCK_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock of this path, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_folder(fresh: Path, folder: Path) -> None:
    """Replace a folder. In between, readers find neither of them, but never a part of one."""
    if folder.exists():
        folder.rename(fresh.with_name("former"))
    fresh.rename(folder)


def run_program(command: Sequence[str], timeout_s: float, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program without input. `stdout` of the result also has its standard error."""
    return subprocess.run(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        **more,
    )


def reason_in(output: str, telling: str) -> str:
    """The first line of a program's output that matches the pattern, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    line = next((line for line in lines if re.search(telling, line)), lines[-1] if lines else "no reason given")
    # Tools print URLs with their user names and passwords.
    return re.sub(r"//[^/@\s]+@", "//", line)[:REASON_LENGTH]
