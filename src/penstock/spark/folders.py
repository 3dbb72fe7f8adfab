"""Small files in a folder that may be on this machine or anywhere that Spark reaches."""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock.spark.gateway import jvm_of

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class StateFolder:
    """A folder by its path, or by a URL such as s3a://bucket/x. Texts are replaced as a whole."""

    def __init__(self, path: str, spark: SparkSession | None = None) -> None:
        self.path = path if _SCHEME.match(path) else str(Path(path.removeprefix("file:")).expanduser().absolute())
        self._spark = spark

    @property
    def local(self) -> Path | None:
        """Where it is on this machine, if it is."""
        return None if _SCHEME.match(self.path) else Path(self.path)

    def below(self, *names: str) -> StateFolder:
        return StateFolder("/".join([self.path.rstrip("/"), *names]), self._spark)

    def create(self) -> None:
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)
        else:
            self._system().mkdirs(self._there())

    def read(self, name: str) -> str | None:
        """The text of a file; None when there is none."""
        if self.local is not None:
            try:
                return (self.local / name).read_text("utf-8")
            except FileNotFoundError:
                return None
        system, there = self._system(), self._there(name)
        if not system.exists(there):
            return None
        stream = system.open(there)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Readers find the text that was there before, or this one."""
        if self.local is not None:
            path = self.local / name
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
            with open(beside, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
            return
        stream = self._system().create(self._there(name), True)
        try:
            stream.write(bytearray(text.encode("utf-8")))
        finally:
            stream.close()

    def names(self) -> list[str]:
        """What is in it, sorted; nothing when it is not there."""
        if self.local is not None:
            return sorted(os.listdir(self.local)) if self.local.is_dir() else []
        system, there = self._system(), self._there()
        return sorted(status.getPath().getName() for status in system.listStatus(there)) if system.exists(there) else []

    def remove(self) -> None:
        """The folder with everything in it, if it is there."""
        if self.local is not None:
            if self.local.exists():
                shutil.rmtree(self.local)
        else:
            self._system().delete(self._there(), True)

    def _there(self, *names: str) -> Any:
        assert self._spark is not None, f"{self.path} is reached through Spark"
        return jvm_of(self._spark).org.apache.hadoop.fs.Path("/".join([self.path.rstrip("/"), *names]))

    def _system(self) -> Any:
        assert self._spark is not None, f"{self.path} is reached through Spark"
        return self._there().getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
