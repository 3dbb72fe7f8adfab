"""What Penstock brings into the JVM of Spark: a local file system that does less for each file, and quiet logging.

Comes in: the Java sources below `java/`, which `python -m tools.build_jvm` compiles. Goes out: `penstock-spark.jar`,
which every session puts before its JVM, and the settings that make Spark use what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
JAR: Final = HERE / "penstock-spark.jar"
SOURCES: Final = HERE / "java"

LOGGING: Final = HERE / "log4j2.properties"

FILE_SYSTEM_CLASS: Final = "penstock.LeanLocalFileSystem"
LEAN_FILES: Final[Mapping[str, str]] = {
    "spark.hadoop.fs.file.impl": FILE_SYSTEM_CLASS,
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "penstock.LeanLocalFs",
    "spark.hadoop.penstock.local.sync": "true",
}
"""What makes Spark use the lean file system for `file:` paths, wherever the jar is at hand. Checkpoints are synced to
the disk, which Hadoop's own does not do; `penstock.local.sync` set to false leaves it out."""
