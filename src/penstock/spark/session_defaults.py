"""The settings of Spark that a session begins with, where nobody has said otherwise.

Each is here because the stock value costs something on small batches, or surprises: the table in docs/spark/session.md
says what and how much.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.spark.jvm import LOGGING

LOOPBACK: Final = "127.0.0.1"

EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # On a busy machine a new Python process takes longer than the stock 15 s to be connected, and its query fails.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # How long a row may wait inside a shuffle of real-time mode, the only one that it is about; with 0 a thread spins.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
}

IN_ONE_PROCESS: Final[Mapping[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}
"""Nothing outside this machine has business with a session that runs in one process."""


def defaults(master: str) -> dict[str, str]:
    """What a session on this master begins with."""
    settings = dict(EVERYWHERE)
    cores = local_cores(master)
    if cores is not None:
        settings |= IN_ONE_PROCESS
        settings["spark.sql.shuffle.partitions"] = str(cores)
    return settings


def local_cores(master: str) -> int | None:
    """How many tasks run at once on a master that is this process; None on any other master.

    `local`, `local[4]`, `local[*]`, and with a number of failures that are allowed, as in `local[4,2]`.
    """
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\]", master)
    if found is None:
        return None
    return available_cores() if found.group(1) == "*" else max(1, int(found.group(1)))


def available_cores() -> int:
    """The cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def site_folder(spark_home: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the machine keeps its own settings of Spark."""
    folder = environment.get("SPARK_CONF_DIR")
    return Path(folder) if folder else Path(spark_home) / "conf"


def site_defaults(spark_home: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the machine's spark-defaults.conf says, which counts for more than what Penstock would choose."""
    file = site_folder(spark_home, environment) / "spark-defaults.conf"
    if not file.is_file():
        return {}
    return dict(_properties(file.read_text("utf-8", errors="replace")))


def quiet_logging(spark_home: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Penstock's settings of logging, unless the machine has its own."""
    if (site_folder(spark_home, environment) / "log4j2.properties").exists():
        return {}
    return {"spark.driver.defaultJavaOptions": f'"-Dlog4j2.configurationFile={LOGGING.as_uri()}"'}


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """Name and value of each line, in the few forms of a properties file that spark-defaults.conf is written in."""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        found = re.fullmatch(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)", stripped)
        if found:
            yield found.group(1), found.group(2).strip()
