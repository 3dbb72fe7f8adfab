"""Spark's classes, kept as the JVM had them in memory, so that sessions start in about half the time.

A JVM that starts Spark reads, checks and links thousands of classes before it answers. It can keep the outcome
in a file (a shared archive of classes, which Java calls AppCDS) and map that file into memory the next time. `make`
makes it, which `penstock spark archive` calls; every session of `penstock.spark.session` then begins with it.

An archive counts for one Java, one Spark and one class path. The JVM holds it against all three, and starts as it would
without one where they differ: an archive can be of no use, but not of harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home

from penstock.errors import PipelineError
from penstock.spark.cache import locked, spark_folder
from penstock.spark.jars import connector_jars
from penstock.spark.java import Java, find_java
from penstock.spark.jvm import JAR

LOG: Final = "archive.log"
"""What the program said that left no archive."""
MAKING_TIMEOUT_S: Final = 600.0
UNUSED_AFTER_S: Final = 30 * 24 * 3600.0
JAVA_OPTIONS: Final = (
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
)
OWN_CHOICE: Final = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")
"""Options by which somebody has chosen an archive, or none."""
SILENCE: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""A JVM that cannot use an archive warns of it, and goes on as if there were none."""


def session_jars(connector: Iterable[Path] | None = None) -> tuple[str, ...]:
    """What a session puts before the JVM: Penstock's jar, and Spark's Kafka connector, by default if it was fetched."""
    return str(JAR), *(str(jar) for jar in (connector_jars() if connector is None else connector))


def archive_file(java: Java, class_path: str) -> Path:
    """Where the archive for this Java and this class path before Spark's own is, or would be."""
    spark_home = Path(_find_spark_home())
    parts = [str(java.home), _text_of(java.home / "release"), str(spark_home)]
    for jar in (next((spark_home / "jars").glob("spark-core_*.jar"), None), *map(Path, class_path.split(os.pathsep))):
        with contextlib.suppress(OSError):  # one that is not there is none of what the classes come from
            if jar is not None:
                status = jar.stat()
                parts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return spark_folder() / f"classes-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}.jsa"


def current_archive() -> Path | None:
    """The archive that a session begins with now, if nobody has said otherwise; None when there is none."""
    file = archive_file(find_java(), os.pathsep.join(session_jars()))
    return file if file.is_file() else None


def archive_options(settings: Mapping[str, str]) -> str:
    """The options of Java by which a session with these settings uses its archive; empty when there is none.

    Also empty when the settings say themselves what archive there shall be.
    """
    chosen = " ".join(settings.get(name, "") for name in JAVA_OPTIONS)
    if any(option in chosen for option in OWN_CHOICE):
        return ""
    file = archive_file(find_java(), settings.get("spark.driver.extraClassPath", ""))
    try:
        os.utime(file)  # it is of use: `make` removes those that nobody has used for long
    except OSError:  # there is none; one in a cache that may not be written to is as good
        if not file.is_file():
            return ""
    return " ".join((f'"-XX:SharedArchiveFile={file}"', *SILENCE))


def make(*, force: bool = False, tell: Callable[[str], None] | None = None) -> Path:
    """Make the archive for sessions as they are now, unless it is there; `force` makes it anew. Gives its path.

    A pipeline runs for it in a process of its own, and the JVM keeps the classes that were loaded.
    The archive is there whole or not at all, and of two processes that make it one waits for the other. Raises
    PipelineError if there is none in the end, and JavaMissingError when there is no Java.
    """
    say = tell or _say_nothing
    java = find_java()
    file = archive_file(java, os.pathsep.join(session_jars()))
    with locked(spark_folder() / "classes"):
        if file.is_file() and not force:
            return file
        say(f"running a small pipeline on Java {java.version}, to see which classes of Spark pipelines need")
        with tempfile.TemporaryDirectory(dir=spark_folder(), prefix="archiving-") as folder:
            fresh = Path(folder) / "classes.jsa"
            failure, told = _run_for_classes(fresh, Path(folder))
            if failure is not None or not fresh.is_file():
                what = failure or "Java kept no archive of Spark's classes"
                raise PipelineError(f"{what}: {_reason_in(told)}{_kept(told)}")
            fresh.chmod(0o644)
            fresh.rename(file)
        (spark_folder() / LOG).unlink(missing_ok=True)
        _sweep(file)
    return file


def _run_for_classes(fresh: Path, folder: Path) -> tuple[str | None, str]:
    """Run the program whose classes are kept: how it failed, if it did, and what it wrote."""
    command = [sys.executable, "-m", "penstock.spark.class_archive_program", str(fresh)]
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment,
            timeout=MAKING_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise PipelineError(
            f"the pipeline whose classes were to be kept did not end in {MAKING_TIMEOUT_S:.0f} s"
        ) from slow
    return None if done.returncode == 0 else "the pipeline whose classes were to be kept failed", done.stdout


def _kept(told: str) -> str:
    """Where all that was told can be read, as one line seldom says why a pipeline failed; empty if it has no place."""
    file = spark_folder() / LOG
    try:
        file.write_text(told, encoding="utf-8")
    except OSError:  # a full disk, perhaps, which is then what the one line says
        return ""
    return f" (all that it said is in {file})"


def _reason_in(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "[error]" in line or "Error" in line or "non-empty directory" in line]
    return (telling or lines or ["it did not say why"])[-1]


def _sweep(kept: Path) -> None:
    """Remove archives that no session has used for long, such as those of a Python environment that is gone."""
    for file in spark_folder().glob("classes-*.jsa"):
        with contextlib.suppress(FileNotFoundError):
            if file != kept and time.time() - file.stat().st_mtime > UNUSED_AFTER_S:
                file.unlink()


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _say_nothing(_: str) -> None:
    pass
