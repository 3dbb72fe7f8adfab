"""HDFS over HTTP (WebHDFS), as a file system of Arrow.

Arrow's own HDFS client loads two native libraries, libjvm and libhdfs. The second is only in Hadoop's distribution, so
hosts with nothing but Java and Python lack it. Every name node and data node serves WebHDFS, and Python needs nothing
for it. Only clusters without Kerberos are supported: the user's name is sent and believed.
"""

from __future__ import annotations

import getpass
import http.client
import io
import json
import os
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType

from penstock.errors import ConfigError

ADDRESSES: Final = "PENSTOCK_WEBHDFS"
"""The environment variable with the HTTP addresses of name nodes: a JSON object, by the host (and port) in hdfs: URLs.
`set_worker_environment` sets it for Python workers."""
DEFAULT_ADDRESS: Final = "http://0.0.0.0:9870"
OTHERS: Final = ""
"""The name, in `ADDRESSES`, of hosts that are not listed. The address 0.0.0.0 is the host of the URL."""
TIMEOUT_S: Final = 60.0
_BUFFER_BYTES: Final = 1 << 20
_STANDBY: Final = ("StandbyException", "RetriableException")
_configured: dict[str, Sequence[str]] = {}


def addresses_of(url: str, environment: Mapping[str, str] = os.environ) -> tuple[list[str], str]:
    """The HTTP addresses of the name nodes of an hdfs:, webhdfs: or swebhdfs: URL, and the path in it."""
    parts = urllib.parse.urlsplit(url)
    path = parts.path or "/"
    if parts.scheme in ("webhdfs", "swebhdfs"):
        return [f"{'https' if parts.scheme == 'swebhdfs' else 'http'}://{parts.netloc}"], path
    if not parts.hostname:
        raise ConfigError(f"{url} names no host: write hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH")
    known: Mapping[str, Sequence[str]] = json.loads(environment.get(ADDRESSES) or "{}") or _configured
    found = known.get(parts.netloc) or known.get(parts.hostname) or known.get(OTHERS) or [DEFAULT_ADDRESS]
    return [each.replace("//0.0.0.0:", f"//{parts.hostname}:") for each in found], path


def configured_addresses(get: Callable[[str], str | None]) -> dict[str, list[str]]:
    """The value of `ADDRESSES` for a Hadoop configuration, of which `get` returns a setting or None."""
    scheme = "https" if get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    setting = f"dfs.namenode.{scheme}-address"
    settings = {OTHERS: [setting]}
    for service in _names(get("dfs.nameservices")):
        nodes = _names(get(f"dfs.ha.namenodes.{service}"))
        settings[service] = [f"{setting}.{service}.{node}" for node in nodes] or [f"{setting}.{service}"]
    given = {
        name: [f"{scheme}://{address}" for each in names if (address := get(each))] for name, names in settings.items()
    }
    return {name: addresses for name, addresses in given.items() if addresses}


def configure(addresses: Mapping[str, Sequence[str]]) -> None:
    """Use these addresses in this process, unless its environment has others."""
    _configured.clear()
    _configured.update(addresses)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


class WebHdfs(FileSystemHandler):  # type: ignore[misc]
    """The files of one HDFS. Holds no connection, so it may be used by any thread."""

    def __init__(self, addresses: Sequence[str], user: str | None = None) -> None:
        self.addresses = tuple(addresses)
        environment = os.environ
        self._user = user or environment.get("HADOOP_USER_NAME") or environment.get("SPARK_USER") or getpass.getuser()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WebHdfs) and other.addresses == self.addresses

    def __hash__(self) -> int:
        return hash(self.addresses)

    def get_type_name(self) -> str:
        return "webhdfs"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Iterable[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        try:
            statuses = self._ask("GET", selector.base_dir, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        found = []
        for status in statuses:
            path = f"{selector.base_dir.rstrip('/')}/{status['pathSuffix']}".rstrip("/")
            found.append(_info_of(path, status))
            if selector.recursive and status["type"] == "DIRECTORY":
                found += self.get_file_info_selector(FileSelector(path, allow_not_found=True, recursive=True))
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        self._ask("PUT", path, "MKDIRS")

    def delete_dir(self, path: str) -> None:
        self._delete(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        for found in self.get_file_info_selector(FileSelector(path, allow_not_found=missing_dir_ok)):
            self._delete(found.path)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the root of HDFS is not deleted")

    def delete_file(self, path: str) -> None:
        self._delete(path)

    def move(self, src: str, dest: str) -> None:
        """Rename atomically; a file at `dest` is replaced."""
        self._ask("PUT", src, "RENAME", destination=dest, renameoptions="OVERWRITE")

    def move_new(self, src: str, dest: str) -> None:
        """Rename atomically. Raises FileExistsError if there is a file at `dest`: of two such renames, one wins."""
        self._ask("PUT", src, "RENAME", destination=dest, renameoptions="NONE")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError("WebHDFS copies no files")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(io.BufferedReader(_Download(self._open(path)), _BUFFER_BYTES), mode="r")

    def open_input_file(self, path: str) -> pa.NativeFile:
        (info,) = self.get_file_info([path])
        if info.type is not FileType.File:
            raise FileNotFoundError(path)
        return pa.PythonFile(io.BufferedReader(_Ranges(self, path, info.size), _BUFFER_BYTES), mode="r")

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        place = self._ask("PUT", path, "CREATE", overwrite="true", noredirect="true")["Location"]
        return pa.PythonFile(io.BufferedWriter(_Upload(place), _BUFFER_BYTES), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        raise NotImplementedError("files are written once")

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with self._open(path, offset=str(offset), length=str(length)) as answer:
            return answer.read()

    def _info(self, path: str) -> FileInfo:
        try:
            return _info_of(path, self._ask("GET", path, "GETFILESTATUS")["FileStatus"])
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def _delete(self, path: str) -> None:
        if not self._ask("DELETE", path, "DELETE", recursive="true")["boolean"]:
            raise FileNotFoundError(path)

    def _open(self, path: str, **more: str) -> http.client.HTTPResponse:
        place = self._ask("GET", path, "OPEN", noredirect="true", **more)["Location"]
        return _answer(_request("GET", place), path)

    def _ask(self, verb: str, path: str, operation: str, **more: str) -> Any:
        """The JSON that the active name node answers; None without a body."""
        query = urllib.parse.urlencode({"op": operation, "user.name": self._user, **more})
        problem: OSError | None = None
        for address in self.addresses:
            try:
                with _answer(_request(verb, f"{address}/webhdfs/v1{urllib.parse.quote(path)}?{query}"), path) as answer:
                    body = answer.read()
                return json.loads(body) if body else None
            except _Standby as error:
                problem = error
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, _Refused | FileNotFoundError | FileExistsError | PermissionError):
                    raise
                problem = OSError(f"{address} does not answer: {error}")
        raise problem or OSError("no name node is known")


class _Refused(OSError):
    """HDFS answered that it cannot do it."""


class _Standby(OSError):
    """The name node is not the active one."""


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    # Name nodes send redirections with letters that are not ASCII as they are.
    target = urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
    return kind(parts.netloc, timeout=TIMEOUT_S), urllib.parse.quote(target, safe="%/?&=:,;+@!$'()*~")


def _request(verb: str, url: str) -> http.client.HTTPResponse:
    connection, target = _connection(url)
    # The answer reads to its end, then the server closes: no connection is left open.
    connection.request(verb, target, headers={"Connection": "close"})
    return connection.getresponse()


def _answer(answer: http.client.HTTPResponse, path: str) -> http.client.HTTPResponse:
    """The answer, or the error that it carries."""
    if answer.status < 300:
        return answer
    with answer:
        text = answer.read().decode("utf-8", errors="replace")
    try:
        told = json.loads(text)["RemoteException"]
        kind, message = str(told["exception"]), str(told["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        kind, message = f"HTTP {answer.status}", answer.reason
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        raise PermissionError(f"HDFS wants a Kerberos login for {path}, which is not supported: {message}")
    if kind in _STANDBY:
        raise _Standby(message)
    if kind == "FileNotFoundException":
        raise FileNotFoundError(path)
    if kind == "FileAlreadyExistsException":
        raise FileExistsError(path)
    if kind == "AccessControlException":
        raise PermissionError(f"HDFS refused {path}: {message}")
    raise _Refused(f"HDFS refused {path}: {kind}: {message}")


def _info_of(path: str, status: Mapping[str, Any]) -> FileInfo:
    is_file = status["type"] == "FILE"
    kind = FileType.File if is_file else FileType.Directory
    return FileInfo(path, kind, size=status["length"] if is_file else None, mtime=status["modificationTime"] / 1_000)


class _Download(io.RawIOBase):
    """The body of an answer."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._answer.readinto(buffer)

    def close(self) -> None:
        self._answer.close()
        super().close()


class _Ranges(io.RawIOBase):
    """A file that is read from any place."""

    def __init__(self, system: WebHdfs, path: str, size_bytes: int) -> None:
        self._system = system
        self._path = path
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size_bytes - self._at)
        if length <= 0:
            return 0
        data = self._system.read_range(self._path, self._at, length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Upload(io.RawIOBase):
    """A file that is sent to a data node as it is written. It is complete once `close` has returned."""

    def __init__(self, place: str) -> None:
        self._connection, target = _connection(place)
        self._path = urllib.parse.unquote(urllib.parse.urlsplit(place).path)
        self._connection.putrequest("PUT", target)
        self._connection.putheader("Content-Type", "application/octet-stream")
        self._connection.putheader("Transfer-Encoding", "chunked")
        self._connection.endheaders()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        if chunk:
            self._connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        return len(chunk)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._connection.send(b"0\r\n\r\n")
            _answer(self._connection.getresponse(), self._path).close()
        finally:
            self._connection.close()
            super().close()
