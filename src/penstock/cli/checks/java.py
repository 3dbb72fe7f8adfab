"""Java, Spark's Kafka connector and the archive of its classes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.cli.checks.extras import installed_version
from penstock.cli.checks.finding import Finding, ok, warn
from penstock.errors import JavaMissingError, MissingExtraError
from penstock.java.installed import find_java


def check_java(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Findings about Java. Everything but Spark works without it, so its absence is not a failure."""
    if installed_version("pyspark") is None:
        return [ok("java", "not needed without Spark (pip install 'penstock[spark]')")]
    try:
        java = find_java(environment)
    except JavaMissingError as error:
        what, _, fix = str(error).rpartition(". ")
        return [warn("java", what, fix.rstrip("."))]
    text = f"{java.version} ({java.where})"
    home = environment.get("JAVA_HOME")
    if home and not java.where.startswith("JAVA_HOME="):
        return [warn("java", f"{text}, as JAVA_HOME={home} is not usable", "correct JAVA_HOME, or unset it")]
    return [ok("java", text)]


def check_connector() -> list[Finding]:
    if installed_version("pyspark") is None:
        return []
    try:
        from penstock.spark.sessions.jars import connector_folder, connector_jars
    except (ImportError, MissingExtraError) as error:
        return [warn("spark connector", f"Spark cannot be imported: {error}", "pip install 'penstock[spark]'")]
    jars = connector_jars()
    if jars:
        return [ok("spark connector", f"{len(jars)} jars in {connector_folder()}")]
    fix = "needed for real-time mode and for Apache Kafka through Spark: penstock spark jars"
    return [warn("spark connector", f"not fetched for Spark {installed_version('pyspark')}", fix)]


def check_archive() -> list[Finding]:
    """Whether the archive that makes sessions start faster exists. Everything works without it."""
    if installed_version("pyspark") is None:
        return []
    try:
        from penstock.spark.sessions.class_archive import current_archive

        there = current_archive()
    except (ImportError, MissingExtraError, JavaMissingError):
        return []  # reported by the findings about Spark and Java
    if there is None:
        return [ok("spark archive", "none; `penstock spark archive` makes sessions start in about half the time")]
    return [ok("spark archive", f"{there}")]
