"""What Spark's Python processes are started with: the variables of their environment, and the interpreter.

The variables are set in advance so that queries can share a function. Every Python function has a map of environment
variables. Spark adds some without a lock when a query starts a process beside the driver (to plan a stream or a
stateful operator), while other queries with the same function send the map to their tasks. If two queries add the same
name at once, the map's size is wrong, and no task with that function can be sent any more: "Illegal size 5 of
collection, expected 6". The source of the format "penstock" is one function for all queries. If the names are in the
map from the start, Spark only replaces their values, always by the same ones.

The interpreter is ours behind a script. Spark puts its own zip of PySpark at the front of the path, where Python
compiles every module again in each process: 1.9 s of work instead of 0.6 s. The script takes it away, so that PySpark
is imported from where the driver has it from.
"""

from __future__ import annotations

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

SCRIPT: Final = """\
#!/bin/sh
# Python for Spark, without Spark's archives in its path: {home} has the same modules, compiled.
home={home}
rest=$PYTHONPATH:
kept=
while [ -n "$rest" ]; do
  entry=${{rest%%:*}}
  rest=${{rest#*:}}
  case $entry in
    "" | "$home"/python/lib/*.zip | "$home"/jars/*.jar) ;;
    *) kept=$kept:$entry ;;
  esac
done
export PYTHONPATH="${{kept#:}}"
exec {python} "$@"
"""

_one_at_a_time = threading.Lock()


def python_without_archives(spark_home: str, folder: str) -> str:
    """A script in this folder that starts this interpreter without Spark's archives in its path; the interpreter itself
    where the archives are needed, or no script can be run."""
    home = os.path.realpath(spark_home)
    if os.path.dirname(os.path.realpath(pyspark.__file__)) != home or os.path.realpath(py4j.__file__).startswith(home):
        return sys.executable
    script = Path(folder) / "python"
    try:
        script.write_text(SCRIPT.format(home=shlex.quote(spark_home), python=shlex.quote(sys.executable)), "utf-8")
        script.chmod(0o755)
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
    """The variables that Spark adds. It overrides these values when it starts a process."""
    return {
        "SPARK_AUTH_SOCKET_TIMEOUT": "15",
        "SPARK_BUFFER_SIZE": "65536",
        "SPARK_LOCAL_DIRS": spark.conf.get("spark.local.dir", None) or tempfile.gettempdir(),
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    }
