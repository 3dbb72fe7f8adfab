"""The jars of Spark's Kafka connector, which the pip package of Spark does not bring: fetched once, kept in a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyspark
from pyspark.find_spark_home import _find_spark_home

from penstock.errors import ConnectorMissingError
from penstock.spark.cache import locked, spark_folder
from penstock.spark.jar_resolvers import Ivy, Maven, Resolver
from penstock.spark.jar_versions import fetch_all
from penstock.spark.java import find_java
from penstock.spark.jvm import JAR
from penstock.spark.session_defaults import site_defaults

CHECK_TIMEOUT_S: Final = 120.0


def connector_folder() -> Path:
    """Where the connector for the installed Spark is, once it has been fetched."""
    return spark_folder() / "connector"


def connector_jars() -> tuple[Path, ...]:
    """The jars of the Kafka connector for the installed Spark; empty when they have not been fetched."""
    return tuple(sorted(connector_folder().glob("*.jar")))


def fetch_connector(
    *, force: bool = False, tell: Callable[[str], None] | None = None, resolver: Resolver | None = None
) -> tuple[Path, ...]:
    """Fetch the Kafka connector for the installed Spark into the cache, unless it is there; `force` fetches it anew.

    It is there whole or not at all, also when this process is killed, and of two processes that want it at once one
    waits for the other. `tell` is called with a line for people at each step. By default Maven is asked if it is
    installed, so that the machine's settings hold, and else Spark's own resolver. Raises ConnectorMissingError when it
    cannot be had or does not fit, and JavaMissingError when there is no Java; what was there before stays then.
    """
    say = tell or _say_nothing
    folder = connector_folder()
    with locked(folder):
        if connector_jars() and not force:
            return connector_jars()
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
            fetched = Path(name)
            jars = fetch_all(resolver or _resolver(), pyspark.__version__, _scala_version(), fetched, say)
            count = _check_that_they_fit(jars)
            say(f"all {count} classes of the connector fit Spark {pyspark.__version__}")
            whole = fetched / "whole"
            whole.mkdir()
            for jar in jars:
                jar.rename(whole / jar.name)
            _exchange(whole, folder)
    return connector_jars()


def _exchange(fresh: Path, folder: Path) -> None:
    """Put a folder in the place of another. Whoever looks in between finds neither, but never half of one."""
    if folder.exists():
        folder.rename(fresh.with_name("former"))
    fresh.rename(folder)


def _resolver() -> Resolver:
    mvn = shutil.which("mvn")
    if mvn is not None:
        return Maven(mvn)
    home = _find_spark_home()
    ivy = next((Path(home) / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise ConnectorMissingError(
            "neither mvn nor the Ivy of Spark is there to fetch Spark's Kafka connector with: install Maven"
        )
    java = str(find_java().home / "bin" / "java")
    return Ivy(java, ivy, site_defaults(home).get("spark.jars.ivySettings"))


def _scala_version() -> str:
    """2.13, out of the name of the jar with Spark's core."""
    core = next((Path(_find_spark_home()) / "jars").glob("spark-core_*.jar"), None)
    return core.name.removeprefix("spark-core_").partition("-")[0] if core is not None else "2.13"


def _check_that_they_fit(jars: list[Path]) -> int:
    """Load every class of the connector beside those of the installed Spark. How many there are."""
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
        raise ConnectorMissingError(f"Java did not load the connector's classes in {CHECK_TIMEOUT_S:.0f} s") from slow
    if done.returncode != 0:
        names = ", ".join(jar.name for jar in jars)
        raise ConnectorMissingError(
            f"the Kafka connector that was found ({names}) does not fit Spark {pyspark.__version__}: "
            f"{(done.stderr.strip().splitlines() or ['Java did not say why'])[-1]}"
        )
    return int(done.stdout.strip())


def _say_nothing(_: str) -> None:
    pass
