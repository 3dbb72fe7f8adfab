"""Where things that were fetched or made once are kept between programs."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark


def cache_folder() -> Path:
    """`$PENSTOCK_CACHE`, or penstock's folder among the user's caches."""
    named = os.environ.get("PENSTOCK_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def spark_folder() -> Path:
    """What belongs to the installed version of Spark; another version has a folder of its own."""
    return cache_folder() / "spark" / pyspark.__version__


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Of two processes that want to make what shall stand here, one waits for the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
