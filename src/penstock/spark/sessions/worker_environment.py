"""Environment variables of Spark's Python functions, set in advance so that queries can share a function.

Every Python function has a map of environment variables. Spark adds some without a lock when a query starts a process
beside the driver (to plan a stream or a stateful operator), while other queries with the same function send the map to
their tasks. If two queries add the same name at once, the map's size is wrong, and no task with that function can be
sent any more: "Illegal size 5 of collection, expected 6". The source of the format "penstock" is one function for all
queries. If the names are in the map from the start, Spark only replaces their values, always by the same ones.
"""

from __future__ import annotations

import tempfile
import threading
from typing import Any

from pyspark.sql import SparkSession

_one_at_a_time = threading.Lock()


def set_worker_environment(spark: SparkSession) -> None:
    """Set the variables for all Python functions that this session creates from now on."""
    with _one_at_a_time:
        for name, value in _variables(spark).items():
            spark.sparkContext.environment.setdefault(name, value)


def set_source_environment(spark: SparkSession, source: Any) -> None:
    """The same for a Python data source, a JVM object, which Spark may have found by itself."""
    variables = source.dataSourceCls().envVars()
    with _one_at_a_time:
        for name, value in _variables(spark).items():
            variables.putIfAbsent(name, value)


def _variables(spark: SparkSession) -> dict[str, str]:
    """The variables that Spark adds. It overrides these values when it starts a process."""
    return {
        "SPARK_AUTH_SOCKET_TIMEOUT": "15",
        "SPARK_BUFFER_SIZE": "65536",
        "SPARK_LOCAL_DIRS": spark.conf.get("spark.local.dir", None) or tempfile.gettempdir(),
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    }
