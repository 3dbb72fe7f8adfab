"""Which jars make up Spark's Kafka connector, and in which versions.

The connector is released with Spark, under Spark's version. A repository that lags behind may not have it yet; then the
nearest older one of the same major version serves, as Spark keeps the interfaces that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from penstock.errors import ConnectorMissingError
from penstock.spark.jar_resolvers import Artifact, Resolver

HIGHEST_PATCH: Final = 6
"""Releases of one minor version that are asked for; no Spark 3 or 4 has had more."""

KAFKA_CLIENTS: Final = Artifact("org.apache.kafka", "kafka-clients")
COMMONS_POOL: Final = Artifact("org.apache.commons", "commons-pool2")
BESIDE: Final = {KAFKA_CLIENTS: ("kafka.version", "3.9.1"), COMMONS_POOL: ("commons-pool2.version", "2.12.1")}
"""What the connector needs beside it: the property of Spark's own pom that says which, and one to go on with if it
does not."""


def fetch_all(
    resolver: Resolver, spark_version: str, scala_version: str, folder: Path, tell: Callable[[str], None]
) -> list[Path]:
    """Put the jars of the connector into the folder. ConnectorMissingError when one of them cannot be had."""
    connector = Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{scala_version}")
    tokens = Artifact("org.apache.spark", f"spark-token-provider-kafka-0-10_{scala_version}")
    versions = older_than_or(spark_version)
    tell(f"asking {resolver.label} for the Kafka connector of Spark {spark_version}")
    found = resolver.fetch({connector: versions, tokens: versions}, folder)
    _check_all(found, [connector, tokens], spark_version)

    parent = Artifact("org.apache.spark", f"spark-parent_{scala_version}", "pom")
    resolver.fetch({parent: [found[connector]]}, folder)
    said = properties_of(folder / parent.file_name(found[connector]))
    beside = {artifact: older_than_or(said.get(name, known)) for artifact, (name, known) in BESIDE.items()}
    tell(f"asking {resolver.label} for {' and '.join(f'{each.name} {beside[each][0]}' for each in beside)}")
    found |= resolver.fetch(beside, folder)
    _check_all(found, list(beside), spark_version)

    wished = {connector: spark_version, tokens: spark_version, **{each: beside[each][0] for each in beside}}
    for artifact, version in found.items():
        instead = f", as {wished[artifact]} is not to be had" if version != wished[artifact] else ""
        tell(f"took {artifact.name} {version}{instead}")
    return [folder / artifact.file_name(version) for artifact, version in found.items()]


def _check_all(found: dict[Artifact, str], wanted: list[Artifact], spark_version: str) -> None:
    missing = [artifact.name for artifact in wanted if artifact not in found]
    if missing:
        raise ConnectorMissingError(
            f"the repositories of this machine have no {' and no '.join(missing)} that would do for Spark "
            f"{spark_version}. Set Maven up for one that has (~/.m2/settings.xml), and run `penstock spark jars` again"
        )


def older_than_or(version: str) -> list[str]:
    """The version itself, then those that may have come before it in its major version, the newest first."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        return [version]
    major, minor, patch = (int(number) for number in numbers.groups())
    if version != numbers.group(0):  # a preview of it, or a build of somebody's own
        patch += 1
    same_minor = [f"{major}.{minor}.{each}" for each in range(patch - 1, -1, -1)]
    before = [f"{major}.{lower}.{each}" for lower in range(minor - 1, -1, -1) for each in range(HIGHEST_PATCH, -1, -1)]
    return [version, *same_minor, *before]


def properties_of(pom: Path) -> dict[str, str]:
    """The properties that a pom defines; none if there is no such pom, or it cannot be read."""
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
