"""`StateFolder`: small text files in a local folder or on any file system that Spark reaches."""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.spark.jvm import jvm_of

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class StateFolder:
    """A folder by its path, or by a URL such as s3a://bucket/x. Files are replaced as a whole."""

    def __init__(self, path: str, spark: SparkSession | None = None) -> None:
        self.path = path if _SCHEME.match(path) else str(Path(path.removeprefix("file:")).expanduser().absolute())
        self._spark = spark

    @property
    def local(self) -> Path | None:
        """The path, if the folder is on a local file system."""
        return None if _SCHEME.match(self.path) else Path(self.path)

    def below(self, *names: str) -> StateFolder:
        return StateFolder("/".join([self.path.rstrip("/"), *names]), self._spark)

    def create(self) -> None:
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)
        else:
            self._system().mkdirs(self._hadoop_path())

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        if self.local is not None:
            try:
                return (self.local / name).read_text("utf-8")
            except FileNotFoundError:
                return None
        system, path = self._system(), self._hadoop_path(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Replace the text of a file. On a local disk, readers see the old or the new text, never a part."""
        if self.local is not None:
            path = self.local / name
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
            with open(draft, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            return
        stream = self._system().create(self._hadoop_path(name), True)
        try:
            stream.write(bytearray(text.encode("utf-8")))
        finally:
            stream.close()

    def names(self) -> list[str]:
        """The sorted names in the folder; empty if it does not exist."""
        if self.local is not None:
            return sorted(os.listdir(self.local)) if self.local.is_dir() else []
        system, path = self._system(), self._hadoop_path()
        return sorted(status.getPath().getName() for status in system.listStatus(path)) if system.exists(path) else []

    def remove(self) -> None:
        """Delete the folder and its content, if it exists."""
        if self.local is not None:
            if self.local.exists():
                shutil.rmtree(self.local)
        else:
            self._system().delete(self._hadoop_path(), True)

    def _hadoop_path(self, *names: str) -> Any:
        assert self._spark is not None, f"{self.path} is reached through Spark"
        return jvm_of(self._spark).org.apache.hadoop.fs.Path("/".join([self.path.rstrip("/"), *names]))

    def _system(self) -> Any:
        assert self._spark is not None, f"{self.path} is reached through Spark"
        return self._hadoop_path().getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
