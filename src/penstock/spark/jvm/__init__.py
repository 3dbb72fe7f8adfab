"""The JVM of a session, and what Penstock adds to it: a local file system that does less per file, quiet logging, a
stager of rows, and a writer of tables in real-time mode.

`python -m tools.build_jvm` compiles the Java sources in `java/` to `penstock-spark.jar`, which every session adds to
the class path of its JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE: Final = Path(__file__).resolve().parent
JAR: Final = HERE / "penstock-spark.jar"
SOURCES: Final = HERE / "java"

LOGGING: Final = HERE / "log4j2.properties"

FILE_SYSTEM_CLASS: Final = "penstock.LeanLocalFileSystem"
LEAN_FILES: Final[Mapping[str, str]] = {
    "spark.hadoop.fs.file.impl": FILE_SYSTEM_CLASS,
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "penstock.LeanLocalFs",
    "spark.hadoop.penstock.local.sync": "true",
    # Hadoop's S3 client buffers files on the local disk. By default it looks for classes in its own class loader only,
    # which on executors does not have ours.
    "spark.hadoop.fs.s3a.classloader.isolation": "false",
}
"""The settings that make Spark use the lean file system for `file:` paths. It syncs checkpoints to the disk, which
Hadoop's own does not do; `penstock.local.sync=false` turns that off."""


def jvm_of(spark: SparkSession) -> Any:
    """The JVM's classes by name. Raises ConfigError for a session of Spark Connect."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ConfigError(
            "this session has no JVM (it uses Spark Connect, or was stopped): create it with penstock.spark.session(), "
            'or use the format "penstock", which Spark Connect has, too'
        )
    return jvm
