"""Starts and stops sessions in a process of its own, and tells what it found, a JSON object a line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.java import installed as java
from penstock.spark.sessions.opening import session

NAMES = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.penstock.test")


def tell(what: str, fact: object) -> None:
    sys.stdout.write(json.dumps({what: fact}) + "\n")
    sys.stdout.flush()


def error_of(action: Callable[[], object]) -> str:
    try:
        action()
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def describe(spark: SparkSession) -> dict[str, Any]:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert spark.range(3).count() == 3
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), conf)
    return {
        **{name: spark.conf.get(name, None) for name in SETTINGS},
        "master": spark.sparkContext.master,
        "name": spark.sparkContext.appName,
        "file system": files.getClass().getName(),
    }


def without_java() -> str:
    path, folders = os.environ["PATH"], java.jvm_folders
    os.environ["PATH"] = ""
    java.jvm_folders = lambda: ()
    try:
        return error_of(session)
    finally:
        os.environ["PATH"], java.jvm_folders = path, folders


def main() -> None:
    for name in NAMES:
        os.environ.pop(name, None)
    tell("without Java", without_java())
    tell("without connector", error_of(lambda: session(connector=True)))
    tell("nonsense", error_of(lambda: session(master="local[1]", conf={"spark.driver.memory": "nonsense"})))
    settings = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": 3, "spark.penstock.test": "x"}
    first = session("first", master="local[1]", conf=settings)
    tell("first", describe(first))
    tell("environment", {name: os.environ.get(name) for name in NAMES})
    first.stop()
    tell("more memory", error_of(lambda: session(conf={"spark.driver.memory": "600m"})))
    tell("second", describe(session("second", master="local[2]")))
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.kill()
    gateway.proc.wait(60)
    tell("killed", error_of(session))
    os._exit(0)  # PySpark would try to say goodbye to the JVM


if __name__ == "__main__":
    main()
