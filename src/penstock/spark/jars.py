"""Where the jars of Spark's Kafka connector are kept."""

from __future__ import annotations

import os
import sys
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


def connector_folder() -> Path:
    """Where the connector for the installed Spark is, once it has been fetched."""
    return cache_folder() / "spark" / pyspark.__version__ / "connector"


def connector_jars() -> tuple[Path, ...]:
    """The jars of the Kafka connector for the installed Spark; empty when they have not been fetched."""
    return tuple(sorted(connector_folder().glob("*.jar")))
