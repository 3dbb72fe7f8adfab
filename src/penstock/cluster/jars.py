"""The jars of Apache Kafka's server: fetched once with Maven, and kept in the cache."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from penstock.errors import ClusterError
from penstock.java.downloads import (
    DEPENDENCY_PLUGIN,
    Tell,
    cache_folder,
    locked,
    reason_in,
    replace_folder,
    run_program,
    silent,
)

KAFKA_VERSION: Final = "4.3.1"
LOG4J_VERSION: Final = "2.25.4"
"""The version of log4j-core, which kafka_2.13 brings; the binding for slf4j is not among its dependencies."""
MAVEN_TIMEOUT_S: Final = 900.0
SERVER_JAR: Final = "kafka_2.13-*.jar"
ERROR_LINE: Final = r"^\[ERROR\] "

POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>cluster</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{KAFKA_VERSION}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
<version>{LOG4J_VERSION}</version></dependency>
</dependencies></project>
"""


def cluster_cache() -> Path:
    """The cache folder for what all clusters share."""
    return cache_folder() / "kafka-cluster"


def jars_folder() -> Path:
    """The cache folder of Kafka's jars, whether or not it exists."""
    return cluster_cache() / KAFKA_VERSION


def kafka_jars(chosen: Path | None = None, tell: Tell = silent) -> Path:
    """The folder of Kafka's jars: the chosen one, else that of the cache, which is filled first if need be.

    Raises ClusterError if the chosen folder has no Kafka, or if the jars cannot be fetched.
    """
    if chosen is not None:
        if not any(chosen.glob(SERVER_JAR)):
            raise ClusterError(
                f"{chosen} has no {SERVER_JAR}: pass the `libs` folder of a Kafka distribution, or omit --jars: "
                f"Kafka {KAFKA_VERSION} is then fetched with Maven"
            )
        return chosen.absolute()
    folder = jars_folder()
    with locked(folder):
        if not any(folder.glob(SERVER_JAR)):
            _fetch(folder, tell)
    return folder


def _fetch(folder: Path, tell: Tell) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise ClusterError(
            f"the jars of Apache Kafka {KAFKA_VERSION} are not in {folder}, and there is no mvn to fetch them: install "
            "Maven, or pass --jars with the `libs` folder of a Kafka distribution"
        )
    tell(f"fetching Apache Kafka {KAFKA_VERSION} with Maven, once (about 50 MB)")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
        pom = Path(name) / "pom.xml"
        pom.write_text(POM, "utf-8")
        whole = Path(name) / "jars"
        command = [mvn, "--batch-mode", "--quiet", "--file", str(pom), f"{DEPENDENCY_PLUGIN}:copy-dependencies"]
        try:
            done = run_program(
                [*command, "-DincludeScope=runtime", f"-DoutputDirectory={whole}"], timeout_s=MAVEN_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as slow:
            raise ClusterError(
                f"Maven did not fetch Apache Kafka within {MAVEN_TIMEOUT_S:.0f} s: check that its repository answers"
            ) from slow
        if done.returncode != 0 or not any(whole.glob(SERVER_JAR)):
            raise ClusterError(
                f"Maven could not fetch Apache Kafka {KAFKA_VERSION}: {reason_in(done.stdout, ERROR_LINE)}. "
                "Configure Maven for a repository that has it (~/.m2/settings.xml), or pass --jars"
            )
        replace_folder(whole, folder)
