"""Java, Spark's Kafka connector and the archive of its classes, for who has Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.cli.checks.extras import installed_version
from penstock.cli.checks.finding import Finding, ok, warn
from penstock.errors import JavaMissingError, MissingExtraError


def check_java(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Without Java everything works but Spark, so that its absence is no failure."""
    if installed_version("pyspark") is None:
        return [ok("java", "not needed without Spark (pip install 'penstock[spark]')")]
    try:
        from penstock.spark.java import find_java

        java = find_java(environment)
    except MissingExtraError as error:
        return [warn("java", str(error), "pip install 'penstock[spark]'")]
    except JavaMissingError as error:
        what, _, fix = str(error).rpartition(". ")
        return [warn("java", what, fix.rstrip("."))]
    text = f"{java.version} ({java.where})"
    home = environment.get("JAVA_HOME")
    if home and not java.where.startswith("JAVA_HOME="):
        return [warn("java", f"{text}, as JAVA_HOME={home} does not fit", "set JAVA_HOME right, or unset it")]
    return [ok("java", text)]


def check_connector() -> list[Finding]:
    if installed_version("pyspark") is None:
        return []
    try:
        from penstock.spark.jars import connector_folder, connector_jars
    except (ImportError, MissingExtraError) as error:
        return [warn("spark connector", f"Spark cannot be imported: {error}", "pip install 'penstock[spark]'")]
    jars = connector_jars()
    if jars:
        return [ok("spark connector", f"{len(jars)} jars in {connector_folder()}")]
    fix = "real-time mode and Apache Kafka through Spark need it: penstock spark jars"
    return [warn("spark connector", f"not fetched for Spark {installed_version('pyspark')}", fix)]


def check_archive() -> list[Finding]:
    """Whether sessions start as fast as they could. Everything works without it."""
    if installed_version("pyspark") is None:
        return []
    try:
        from penstock.spark.class_archive import current_archive

        there = current_archive()
    except (ImportError, MissingExtraError, JavaMissingError):
        return []  # what the findings about Spark and Java are about
    if there is None:
        return [ok("spark archive", "none; sessions start in about half the time after: penstock spark archive")]
    return [ok("spark archive", f"{there}")]
