"""An AppCDS archive of Spark's classes, with which sessions start in about half the time.

A JVM that starts Spark loads, verifies and links thousands of classes. It can write the result to a file (Java's class
data sharing, AppCDS) and map that file into memory at the next start. `make` creates the file; `penstock spark archive`
calls it. Every `penstock.spark.session` uses the archive if it exists.

An archive is valid for one Java, one Spark and one class path. The JVM checks all three, and ignores an archive that
does not match.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home

from penstock.errors import PipelineError
from penstock.java.downloads import Tell, locked, run_program, silent
from penstock.java.installed import Java, find_java
from penstock.spark.jvm import JAR
from penstock.spark.sessions.defaults import spark_folder
from penstock.spark.sessions.jars import connector_jars

LOG: Final = "archive.log"
"""The output of the program if it did not create an archive."""
MAKING_TIMEOUT_S: Final = 600.0
UNUSED_AFTER_S: Final = 30 * 24 * 3600.0
JAVA_OPTIONS: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
OWN_CHOICE: Final = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")
"""Java options with which users choose an archive, or none."""
SILENCE: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Suppresses the warnings of a JVM that cannot use an archive."""


def session_jars(connector: Iterable[Path] | None = None) -> tuple[str, ...]:
    """The jars of a session: Penstock's own, and those of Spark's Kafka connector, by default if it was fetched."""
    return str(JAR), *(str(jar) for jar in (connector_jars() if connector is None else connector))


def archive_file(java: Java, class_path: str) -> Path:
    """The path of the archive for this Java and this class path, whether or not it exists."""
    spark_home = Path(_find_spark_home())
    parts = [str(java.home), _text_of(java.home / "release"), str(spark_home)]
    for jar in (next((spark_home / "jars").glob("spark-core_*.jar"), None), *map(Path, class_path.split(os.pathsep))):
        with contextlib.suppress(OSError):  # a missing jar contributes no classes
            if jar is not None:
                status = jar.stat()
                parts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return spark_folder() / f"classes-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}.jsa"


def current_archive() -> Path | None:
    """The archive that a session uses by default; None if it does not exist."""
    file = archive_file(find_java(), os.pathsep.join(session_jars()))
    return file if file.is_file() else None


def archive_options(settings: Mapping[str, str]) -> str:
    """The Java options for the archive of a session with these settings.

    Empty if there is no archive, or if the settings choose one themselves.
    """
    chosen = " ".join(settings.get(name, "") for name in JAVA_OPTIONS)
    if any(option in chosen for option in OWN_CHOICE):
        return ""
    file = archive_file(find_java(), settings.get("spark.driver.extraClassPath", ""))
    try:
        os.utime(file)  # `make` removes archives that were not used for long
    except OSError:  # the archive is missing, or the cache is read-only
        if not file.is_file():
            return ""
    return " ".join((f'"-XX:SharedArchiveFile={file}"', *SILENCE))


def make(*, force: bool = False, tell: Tell = silent) -> Path:
    """Create the archive for sessions as configured now, unless it exists; `force` creates it again. Returns its path.

    A separate process runs a small pipeline, and its JVM writes the archive. An archive appears complete or not at all.
    Raises PipelineError if that fails, and JavaMissingError if there is no Java.
    """
    java = find_java()
    file = archive_file(java, os.pathsep.join(session_jars()))
    with locked(spark_folder() / "classes"):
        if file.is_file() and not force:
            return file
        tell(f"running a small pipeline on Java {java.version}, to find the classes of Spark that pipelines need")
        with tempfile.TemporaryDirectory(dir=spark_folder(), prefix="archiving-") as folder:
            fresh = Path(folder) / "classes.jsa"
            failure, output = _run_for_classes(fresh, Path(folder))
            if failure is not None or not fresh.is_file():
                what = failure or "Java created no archive of Spark's classes"
                raise PipelineError(f"{what}: {_reason_in(output)}{_saved(output)}")
            fresh.chmod(0o644)
            fresh.rename(file)
        (spark_folder() / LOG).unlink(missing_ok=True)
        _remove_unused(file)
    return file


def _run_for_classes(fresh: Path, folder: Path) -> tuple[str | None, str]:
    """Run the program that loads the classes. Returns a description of its failure, if any, and its output."""
    command = [sys.executable, "-m", "penstock.spark.sessions.class_archive_program", str(fresh)]
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    try:
        done = run_program(command, MAKING_TIMEOUT_S, cwd=folder, env=environment)
    except subprocess.TimeoutExpired as slow:
        raise PipelineError(f"the pipeline for the archive did not end within {MAKING_TIMEOUT_S:.0f} s") from slow
    return None if done.returncode == 0 else "the pipeline for the archive failed", done.stdout


def _saved(output: str) -> str:
    """Save the output to a file, and return the end of a message that names it; empty if that fails."""
    file = spark_folder() / LOG
    try:
        file.write_text(output, encoding="utf-8")
    except OSError:  # perhaps a full disk, which is then the reason in the message
        return ""
    return f" (the whole output is in {file})"


def _reason_in(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "[error]" in line or "Error" in line or "non-empty directory" in line]
    return (telling or lines or ["it gave no reason"])[-1]


def _remove_unused(kept: Path) -> None:
    """Remove archives that no session has used for long, such as those of a deleted Python environment."""
    for file in spark_folder().glob("classes-*.jsa"):
        with contextlib.suppress(FileNotFoundError):
            if file != kept and time.time() - file.stat().st_mtime > UNUSED_AFTER_S:
                file.unlink()


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError:
        return ""
