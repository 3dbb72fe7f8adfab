"""What Spark's Python processes are started with: the variables of their environment, and the interpreter.

The variables are set in advance so that queries can share a function. Every Python function has a map of environment
variables. Spark adds some without a lock when a query starts a process beside the driver (to plan a stream or a
stateful operator), while other queries with the same function send the map to their tasks. If two queries add the same
name at once, the map's size is wrong, and no task with that function can be sent any more: "Illegal size 5 of
collection, expected 6". The source of the format "penstock" is one function for all queries. If the names are in the
map from the start, Spark only replaces their values, always by the same ones.

The interpreter is ours behind a script, which runs `python_client`. It asks `fork_server`, a process that has done all
imports, to fork the new one. Otherwise it takes at least Spark's own zip of PySpark from the path, where Python would
compile every module again in each process.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import py4j
import pyspark
from pyspark.sql import SparkSession

from penstock.spark.sessions import python_client
from penstock.spark.sessions.fork_server import SOCKET
from penstock.spark.sink.webhdfs import ADDRESSES, configure, configured_addresses

SCRIPT: Final = """\
#!/bin/sh
exec {python} -I -S {client} {socket} {home} "$@"
"""

_one_at_a_time = threading.Lock()


def python_for_spark(spark_home: str, folder: str) -> str:
    """A script in this folder that Spark runs as this interpreter; the interpreter itself if Spark's archives are
    needed, or no script can be run."""
    home = os.path.realpath(spark_home)
    if os.path.dirname(os.path.realpath(pyspark.__file__)) != home or os.path.realpath(py4j.__file__).startswith(home):
        return sys.executable
    script = Path(folder) / "python"
    words = {
        "python": sys.executable,
        "client": python_client.__file__,
        "socket": str(Path(folder) / SOCKET),
        "home": spark_home,
    }
    fresh = script.with_suffix(".new")  # an earlier session may be running the script
    try:
        fresh.write_text(SCRIPT.format(**{name: shlex.quote(word) for name, word in words.items()}), "utf-8")
        fresh.chmod(0o755)
        fresh.rename(script)
    except OSError:
        return sys.executable
    return str(script) if os.access(script, os.X_OK) else sys.executable


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
    """The variables that Spark adds, whose values it overrides when it starts a process, and those for our own code."""
    return {
        **_name_nodes(spark),
        "SPARK_AUTH_SOCKET_TIMEOUT": "15",
        "SPARK_BUFFER_SIZE": "65536",
        "SPARK_LOCAL_DIRS": spark.conf.get("spark.local.dir", None) or tempfile.gettempdir(),
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    }


def _name_nodes(spark: SparkSession) -> dict[str, str]:
    """Where HDFS answers by HTTP, from the Hadoop configuration of the session, which Python code does not see."""
    found = configured_addresses(spark.sparkContext._jsc.hadoopConfiguration().get)
    configure(found)
    given = os.environ.get(ADDRESSES) or (json.dumps(found) if found else "")
    return {ADDRESSES: given} if given else {}
