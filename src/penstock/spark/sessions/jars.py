"""The jars of Spark's Kafka connector, which PySpark does not contain: downloaded once, and kept in the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pyspark
from pyspark.find_spark_home import _find_spark_home

from penstock.errors import ConnectorMissingError
from penstock.java.downloads import Tell, locked, replace_folder, silent
from penstock.java.installed import find_java
from penstock.spark.jvm import JAR
from penstock.spark.sessions.defaults import site_defaults, spark_folder
from penstock.spark.sessions.jar_resolvers import Artifact, Ivy, Maven, Resolver

HIGHEST_PATCH: Final = 6
"""The highest patch release of a minor version that is tried; no Spark 3 or 4 has had more."""

KAFKA_CLIENTS: Final = Artifact("org.apache.kafka", "kafka-clients")
COMMONS_POOL: Final = Artifact("org.apache.commons", "commons-pool2")
POSTGRESQL: Final = Artifact("org.postgresql", "postgresql")
BESIDE: Final = {
    KAFKA_CLIENTS: ("kafka.version", "3.9.1"),
    COMMONS_POOL: ("commons-pool2.version", "2.12.1"),
    POSTGRESQL: ("postgresql.version", "42.7.7"),
}
"""What the connector needs, and the driver with which real-time mode writes to PostgreSQL: the property of Spark's pom
that has the version, and the version if it is not there."""
CHECK_TIMEOUT_S: Final = 120.0


def fetch_all(resolver: Resolver, spark_version: str, scala_version: str, folder: Path, tell: Tell) -> list[Path]:
    """Download the jars of the connector to the folder. Raises ConnectorMissingError if one is not available."""
    connector = Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{scala_version}")
    tokens = Artifact("org.apache.spark", f"spark-token-provider-kafka-0-10_{scala_version}")
    versions = older_than_or(spark_version)
    tell(f"asking {resolver.label} for the Kafka connector of Spark {spark_version}")
    found = resolver.fetch({connector: versions, tokens: versions}, folder)
    _check_all(found, [connector, tokens], spark_version)

    parent = Artifact("org.apache.spark", f"spark-parent_{scala_version}", "pom")
    resolver.fetch({parent: [found[connector]]}, folder)
    properties = properties_of(folder / parent.file_name(found[connector]))
    beside = {artifact: older_than_or(properties.get(name, known)) for artifact, (name, known) in BESIDE.items()}
    tell(f"asking {resolver.label} for {' and '.join(f'{each.name} {beside[each][0]}' for each in beside)}")
    found |= resolver.fetch(beside, folder)
    _check_all(found, [KAFKA_CLIENTS, COMMONS_POOL], spark_version)
    if POSTGRESQL not in found:
        tell("the repositories have no driver of PostgreSQL, with which real-time mode writes to tables")

    wished = {connector: spark_version, tokens: spark_version, **{each: beside[each][0] for each in beside}}
    for artifact, version in found.items():
        instead = f", as {wished[artifact]} is not available" if version != wished[artifact] else ""
        tell(f"took {artifact.name} {version}{instead}")
    return [folder / artifact.file_name(version) for artifact, version in found.items()]


def _check_all(found: dict[Artifact, str], wanted: list[Artifact], spark_version: str) -> None:
    missing = [artifact.name for artifact in wanted if artifact not in found]
    if missing:
        raise ConnectorMissingError(
            f"the repositories of this machine have no {' and no '.join(missing)} that fits Spark {spark_version}. "
            "Configure Maven for one that has it (~/.m2/settings.xml), and run `penstock spark jars` again"
        )


def older_than_or(version: str) -> list[str]:
    """The version, then all earlier ones that its major version may have, newest first."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        return [version]
    major, minor, patch = (int(number) for number in numbers.groups())
    if version != numbers.group(0):  # a preview or a private build
        patch += 1
    same_minor = [f"{major}.{minor}.{each}" for each in range(patch - 1, -1, -1)]
    before = [f"{major}.{lower}.{each}" for lower in range(minor - 1, -1, -1) for each in range(HIGHEST_PATCH, -1, -1)]
    return [version, *same_minor, *before]


def properties_of(pom: Path) -> dict[str, str]:
    """The properties of a pom; empty if it does not exist or cannot be parsed."""
    try:
        root = ElementTree.parse(pom).getroot()
    except (FileNotFoundError, ElementTree.ParseError):
        return {}
    return {
        entry.tag.rpartition("}")[2]: (entry.text or "").strip()
        for block in root
        if block.tag.rpartition("}")[2] == "properties"
        for entry in block
    }


def connector_folder() -> Path:
    """The folder of the connector for the installed Spark, whether or not it exists."""
    return spark_folder() / "connector"


def connector_jars() -> tuple[Path, ...]:
    """The jars of the Kafka connector for the installed Spark; empty before they were fetched."""
    return tuple(sorted(connector_folder().glob("*.jar")))


def fetch_connector(*, force: bool = False, tell: Tell = silent, resolver: Resolver | None = None) -> tuple[Path, ...]:
    """Download the Kafka connector for the installed Spark to the cache, unless it is there; `force` repeats it.

    It appears complete or not at all, even if this process is killed; a second process waits for the first. The default
    resolver is Maven if it is installed, so that the machine's settings apply, else Spark's own. Raises
    ConnectorMissingError if the connector is not available or does not fit, and JavaMissingError if there is no Java;
    an earlier download then stays.
    """
    folder = connector_folder()
    with locked(folder):
        if connector_jars() and not force:
            return connector_jars()
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
            fetched = Path(name)
            jars = fetch_all(resolver or _resolver(), pyspark.__version__, _scala_version(), fetched, tell)
            count = _check_that_they_fit(jars)
            tell(f"all {count} classes of the connector fit Spark {pyspark.__version__}")
            whole = fetched / "whole"
            whole.mkdir()
            for jar in jars:
                jar.rename(whole / jar.name)
            replace_folder(whole, folder)
    return connector_jars()


def _resolver() -> Resolver:
    mvn = shutil.which("mvn")
    if mvn is not None:
        return Maven(mvn)
    home = _find_spark_home()
    ivy = next((Path(home) / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise ConnectorMissingError(
            "Spark's Kafka connector cannot be downloaded, as there is neither mvn nor Spark's Ivy: install Maven"
        )
    java = str(find_java().home / "bin" / "java")
    return Ivy(java, ivy, site_defaults(home).get("spark.jars.ivySettings"))


def _scala_version() -> str:
    """The Scala version in the name of Spark's core jar, such as 2.13."""
    core = next((Path(_find_spark_home()) / "jars").glob("spark-core_*.jar"), None)
    return core.name.removeprefix("spark-core_").partition("-")[0] if core is not None else "2.13"


def _check_that_they_fit(jars: list[Path]) -> int:
    """Load every class of the connector together with the installed Spark. Returns the number of classes."""
    of_spark = [str(jar) for jar in jars if jar.name.startswith("spark-")]
    class_path = os.pathsep.join([str(Path(_find_spark_home()) / "jars" / "*"), str(JAR), *map(str, jars)])
    java = find_java().home / "bin" / "java"
    try:
        done = subprocess.run(
            [str(java), "-cp", class_path, "penstock.CheckClasses", *of_spark],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise ConnectorMissingError(f"Java did not load the connector within {CHECK_TIMEOUT_S:.0f} s") from slow
    if done.returncode != 0:
        names = ", ".join(jar.name for jar in jars)
        raise ConnectorMissingError(
            f"the Kafka connector that was found ({names}) does not fit Spark {pyspark.__version__}: "
            f"{(done.stderr.strip().splitlines() or ['Java gave no reason'])[-1]}"
        )
    return int(done.stdout.strip())
