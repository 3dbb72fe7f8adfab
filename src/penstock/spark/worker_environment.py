"""The environment of Spark's Python processes, made such that queries can share it.

Every Python function has a map of environment variables. Spark puts some into it, without a lock, whenever a query
starts a process beside the driver (to plan a stream, or a stateful operator), while other queries of the same function
send the map to their tasks. Two that put the same new name at once leave a map that counts one entry more than it has,
and from then on no task with that function can be sent: "Illegal size 5 of collection, expected 6". The source of
the format "penstock" is one function for all queries. Where the names are in the map from the beginning, Spark only
replaces their values, by the same ones each time, and nothing can go wrong.
"""

from __future__ import annotations

import tempfile
import threading
from typing import Any

from pyspark.sql import SparkSession

_one_at_a_time = threading.Lock()


def settle_functions(spark: SparkSession) -> None:
    """All Python functions that this session makes from now on have every name from the beginning."""
    with _one_at_a_time:
        for name, value in _variables(spark).items():
            spark.sparkContext.environment.setdefault(name, value)


def settle_source(spark: SparkSession, source: Any) -> None:
    """The same for a Python data source (an object of the JVM), which Spark may have found by itself."""
    variables = source.dataSourceCls().envVars()
    with _one_at_a_time:
        for name, value in _variables(spark).items():
            variables.putIfAbsent(name, value)


def _variables(spark: SparkSession) -> dict[str, str]:
    """What Spark puts there. Each process is told the true values by Spark itself, over these."""
    return {
        "SPARK_AUTH_SOCKET_TIMEOUT": "15",
        "SPARK_BUFFER_SIZE": "65536",
        "SPARK_LOCAL_DIRS": spark.conf.get("spark.local.dir", None) or tempfile.gettempdir(),
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    }
