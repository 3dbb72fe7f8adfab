"""The JVM behind a session, for the few things that PySpark has no words for."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from penstock.errors import ConfigError


def jvm_of(spark: SparkSession) -> Any:
    """The JVM's classes by their names. ConfigError for a session of Spark Connect, which has none here."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ConfigError(
            "this session has no JVM of its own (it is one of Spark Connect, or was stopped): make it with "
            "penstock.spark.session()"
        )
    return jvm
