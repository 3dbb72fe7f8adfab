"""Stores that hosts share: S3 by moto, and a real HDFS."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, S3FileSystem

from penstock.spark.sink.webhdfs import WebHdfs
from tests import real_parts
from tests.moto_server import CREDENTIALS, REGION, MotoServer
from tests.servers import QUICK_START, ServerProcess, free_ports, wait_for_start

NAME_NODE: Final = "org.apache.hadoop.hdfs.server.namenode.NameNode"
READY_S: Final = 240.0
DATA_NODE: Final = "org.apache.hadoop.hdfs.server.datanode.DataNode"


class Store(Protocol):
    """A file system that driver and executors reach by a URL."""

    def fresh_folder(self) -> str:
        """The URL of a folder that nothing else uses."""

    def conf(self) -> dict[str, str]:
        """Settings of Spark."""

    def environment(self) -> Mapping[str, str]:
        """Variables for the driver."""

    def files(self) -> FileSystem:
        """Its files, for this process."""


class PrivateFolder:
    """A folder that every host has, and none shares."""

    def fresh_folder(self) -> str:
        return f"/tmp/{uuid.uuid4().hex[:8]}"

    def conf(self) -> dict[str, str]:
        return {}

    def environment(self) -> Mapping[str, str]:
        return {}

    def files(self) -> FileSystem:
        return LocalFileSystem()


class S3Store:
    """moto's S3 at this address of this machine."""

    def __init__(self, folder: Path, host: str) -> None:
        self._class_path = real_parts.hadoop_aws_class_path()
        self._moto = MotoServer(folder, host)

    def start(self) -> None:
        self._moto.start()
        self.files().create_dir("penstock")

    def files(self) -> FileSystem:
        return S3FileSystem(
            access_key="testing",
            secret_key="testing",
            endpoint_override=self._moto.endpoint,
            region=REGION,
            allow_bucket_creation=True,
        )

    def fresh_folder(self) -> str:
        return f"s3a://penstock/{uuid.uuid4().hex[:8]}"

    def conf(self) -> dict[str, str]:
        s3a = {
            "endpoint": self._moto.endpoint,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": "testing",
            "secret.key": "testing",
        }
        return {
            **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
            **{f"spark.executorEnv.{name}": value for name, value in self.environment().items()},
            "spark.driver.extraClassPath": self._class_path,
            "spark.executor.extraClassPath": self._class_path,
        }

    def environment(self) -> Mapping[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self._moto.endpoint, "AWS_DEFAULT_REGION": REGION}

    def stop(self) -> None:
        self._moto.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class HdfsStore:
    """A name node and a data node at this address of this machine."""

    def __init__(self, folder: Path, host: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._host = host
        self._java = [real_parts.java(), "-Xmx160m", *QUICK_START, "-cp", f"{folder}:{real_parts.hdfs_class_path()}"]
        self._rpc, self._http, *others = free_ports(5)
        data, ipc, pages = others
        settings = {
            "dfs.namenode.name.dir": str(folder / "names"),
            "dfs.datanode.data.dir": str(folder / "data"),
            "dfs.replication": "1",
            "dfs.namenode.rpc-address": f"{host}:{self._rpc}",
            "dfs.namenode.http-address": f"{host}:{self._http}",
            "dfs.datanode.address": f"{host}:{data}",
            "dfs.datanode.ipc.address": f"{host}:{ipc}",
            "dfs.datanode.http.address": f"{host}:{pages}",
            "dfs.datanode.hostname": host,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        }
        entries = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
        )
        (folder / "hdfs-site.xml").write_text(f"<configuration>{entries}</configuration>")
        default = f"<property><name>fs.defaultFS</name><value>hdfs://{host}:{self._rpc}</value></property>"
        (folder / "core-site.xml").write_text(f"<configuration>{default}</configuration>")
        self._nodes: list[ServerProcess] = []

    def files(self) -> FileSystem:
        return PyFileSystem(WebHdfs([f"http://{self._host}:{self._http}"]))

    def start(self) -> None:
        formatting = ServerProcess([*self._java, NAME_NODE, "-format", "-nonInteractive"], self._folder / "format.txt")
        assert formatting.popen.wait(READY_S) == 0, formatting.last_words()
        for kind in (NAME_NODE, DATA_NODE):
            self._nodes.append(ServerProcess([*self._java, kind], self._folder / f"{kind.rpartition('.')[2]}.txt"))
        wait_for_start(self._nodes[1], self._stores_files, READY_S)

    def _stores_files(self) -> bool:
        try:
            with self.files().open_output_stream("/started") as file:
                file.write(b"yes")
        except OSError:
            return False
        return True

    def fresh_folder(self) -> str:
        return f"hdfs://{self._host}:{self._rpc}/{uuid.uuid4().hex[:8]}"

    def conf(self) -> dict[str, str]:
        return {"spark.hadoop.dfs.namenode.http-address": f"{self._host}:{self._http}"}

    def environment(self) -> Mapping[str, str]:
        return {}

    def stop(self) -> None:
        for node in self._nodes:
            node.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
