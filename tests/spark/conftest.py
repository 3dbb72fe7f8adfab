"""What the tests of Spark share: one session, started when the first of them needs it.

A session is a JVM: it takes seconds to start and a gigabyte to run. So these tests stay in one worker of pytest-xdist
and share one, while the others run everything else. The worked cases and the pages stay together in another worker,
with a session of their own, and what starts clusters, or drivers to be killed, in a third, which has none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import Connection
from penstock.errors import JavaMissingError
from penstock.spark.sessions.opening import session
from tests.moto_server import CREDENTIALS
from tools import parts

HERE: Final = Path(__file__).parent
BESIDE: Final = {"cluster": "spark-cluster", "examples": "spark-examples", "pages": "spark-examples"}
"""The groups of folders that run in other workers. All have about as much to do."""
TEXT_IDS: Final = str(HERE / "text_ids")
"""A package of somebody else's, with its entry point: found here, and by the Python processes that Spark starts."""
sys.path.append(TEXT_IDS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), TEXT_IDS)))
os.environ["PENSTOCK_CACHE"] = str(parts.cache_folder())
os.environ.update(CREDENTIALS)  # of a stand-in: Spark's processes have the environment with which Spark began
# What these tests start is at work for seconds: the second compiler, and a collector with threads, would cost more.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests below this folder stay together, unless they say otherwise."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("xdist_group") is None:
            folder = item.path.relative_to(HERE).parts[0]
            item.add_marker(pytest.mark.xdist_group(BESIDE.get(folder, "spark")))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests of Spark share: two cores, one shuffle partition, the connector if it was fetched."""
    conf = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
        "spark.hadoop.penstock.local.sync": "false",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    try:
        started = session("tests", master="local[2]", conf=conf)
    except JavaMissingError as missing:
        pytest.skip(str(missing))
    yield started
    started.stop()


@pytest.fixture
def log_url(tmp_path: Path) -> Iterator[str]:
    """The URL of an embedded log that is fresh, and whose broker runs until the test ends."""
    url = f"log:{tmp_path / 'log'}"
    with penstock.connect(url):
        yield url


@pytest.fixture
def connection(log_url: str) -> Iterator[Connection]:
    """A connection to the log at `log_url`."""
    with penstock.connect(log_url) as connected:
        yield connected
