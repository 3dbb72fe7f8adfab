"""The default settings of a session.

Each replaces a default of Spark that is slow for small batches, or surprising: see the table in docs/spark/session.md.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark

from penstock.java.downloads import cache_folder
from penstock.spark.jvm import LOGGING

LOOPBACK: Final = "127.0.0.1"
KEEP_LOGS_S: Final = 14 * 86_400
"""How long Spark's log files are kept."""

EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # On a busy machine, a new Python process may need longer than the default of 15 s to connect.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # How long a row may wait in a shuffle of real-time mode. With 0, a thread spins.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
}

LOST_HOSTS: Final[Mapping[str, str]] = {
    # Without heartbeats for this long an executor is given up, and its tasks run elsewhere: 120 s by default.
    "spark.network.timeout": "15s",
    "spark.executor.heartbeatInterval": "3s",
    # How often the driver looks for executors without heartbeats: 60 s by default.
    "spark.network.timeoutInterval": "3s",
    # These follow spark.network.timeout by default. A busy host may take longer to answer, and its request would fail.
    "spark.rpc.askTimeout": "120s",
    "spark.rpc.lookupTimeout": "120s",
}
"""On clusters: how soon work moves away from a host that does not answer. One set of values that fit each other."""

IN_ONE_PROCESS: Final[Mapping[str, str]] = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
"""A session in one process needs no connections from other machines."""


def spark_folder() -> Path:
    """The cache folder for the installed version of Spark."""
    return cache_folder() / "spark" / pyspark.__version__


def defaults(master: str) -> dict[str, str]:
    """The default settings on this master."""
    settings = dict(EVERYWHERE)
    cores = local_cores(master)
    if cores is not None:
        settings |= IN_ONE_PROCESS
        settings["spark.sql.shuffle.partitions"] = str(cores)
    return settings


def lost_host_settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """`LOST_HOSTS` on a cluster, unless one of them is given: then Spark's own defaults apply to the others, as Spark
    refuses a heartbeat interval that is longer than the timeout."""
    return {} if local_cores(master) is not None or given.keys() & LOST_HOSTS.keys() else dict(LOST_HOSTS)


def local_cores(master: str) -> int | None:
    """The number of concurrent tasks on a local master; None on any other master.

    Local masters are `local`, `local[4]`, `local[*]`, and those with a number of allowed failures, as in `local[4,2]`.
    """
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\]", master)
    if found is None:
        return None
    return available_cores() if found.group(1) == "*" else max(1, int(found.group(1)))


def available_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def site_folder(spark_home: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder with the machine's settings of Spark."""
    folder = environment.get("SPARK_CONF_DIR")
    return Path(folder) if folder else Path(spark_home) / "conf"


def site_defaults(spark_home: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings in the machine's spark-defaults.conf, which override those of `defaults`."""
    file = site_folder(spark_home, environment) / "spark-defaults.conf"
    if not file.is_file():
        return {}
    return dict(_properties(file.read_text("utf-8", errors="replace")))


def quiet_logging(spark_home: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Penstock's logging configuration, unless the machine has its own."""
    if (site_folder(spark_home, environment) / "log4j2.properties").exists():
        return {}
    options = {"log4j2.configurationFile": LOGGING.as_uri(), "penstock.log": str(log_file())}
    return {"spark.driver.defaultJavaOptions": " ".join(f'"-D{name}={value}"' for name, value in options.items())}


@functools.cache
def log_file() -> Path:
    """The complete log of this process's JVM, which creates the file with the first line. Deletes old logs."""
    folder = cache_folder() / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("spark-*.log*"):
            if time.time() - old.stat().st_mtime > KEEP_LOGS_S:
                old.unlink()
        writable = os.access(folder, os.W_OK)
    except OSError:  # a read-only home, or another process deletes old logs too
        writable = os.access(folder, os.W_OK)
    began = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
    return (folder if writable else Path(tempfile.mkdtemp(prefix="penstock-"))) / f"spark-{began}-{os.getpid()}.log"


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        found = re.fullmatch(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)", stripped)
        if found:
            yield found.group(1), found.group(2).strip()
