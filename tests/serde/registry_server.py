"""A schema registry over HTTP, on loopback: the part of Confluent's published API that clients use.

There is no schema registry that a Python or Maven package brings along, so this one stands in. What it answers follows
the published API, and Confluent's own Python client and serialisers, which the tests run against it beside ours, find
in it what they expect.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import fastavro.utils


class Refused(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Registry:
    """The state of the server, and what a test may turn on it."""

    port: int = 0
    schemas: list[dict[str, Any]] = field(default_factory=list)
    """Each at its id, less one: `schema`, `schemaType`, `references`."""
    subjects: dict[str, list[int]] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=lambda: {"": "BACKWARD"})
    requests: list[str] = field(default_factory=list)
    authorization: str | None = None
    """What each request must show, if anything."""
    trouble: list[int] = field(default_factory=list)
    """Statuses to answer the next requests with, whatever they ask."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: list[str], body: dict[str, Any]) -> Any:
        match method, path:
            case "GET", ["subjects"]:
                return sorted(self.subjects)
            case "GET", ["subjects", subject, "versions"]:
                return list(range(1, len(self._ids(subject)) + 1))
            case "GET", ["subjects", subject, "versions", version]:
                return self._described(subject, self._version(subject, version))
            case "POST", ["subjects", subject]:
                return self._described(subject, self._known(subject, body))
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self._registered(subject, body)}
            case "GET", ["schemas", "ids", number]:
                return _without_usual(self._schema(int(number)))
            case "POST", ["compatibility", "subjects", subject, "versions", version]:
                latest = self._schema(self._ids(subject)[self._version(subject, version) - 1])
                messages = self._objections(subject, latest, body)
                return {"is_compatible": not messages, "messages": messages}
            case "GET", ["config", *subject]:
                level = self.levels.get("".join(subject)) or self.levels[""]
                return {"compatibilityLevel": level}
            case "PUT", ["config", *subject]:
                self.levels["".join(subject)] = body["compatibility"]
                return body
        raise Refused(404, 404, "HTTP 404 Not Found")

    def _schema(self, number: int) -> dict[str, Any]:
        if not 0 < number <= len(self.schemas):
            raise Refused(404, 40403, f"Schema {number} not found")
        return self.schemas[number - 1]

    def _ids(self, subject: str) -> list[int]:
        if subject not in self.subjects:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def _version(self, subject: str, version: str) -> int:
        last = len(self._ids(subject))
        number = last if version == "latest" else int(version)
        if not 0 < number <= last:
            raise Refused(404, 40402, f"Version {version} not found.")
        return number

    def _described(self, subject: str, version: int) -> dict[str, Any]:
        number = self._ids(subject)[version - 1]
        return {"subject": subject, "version": version, "id": number, **_without_usual(self._schema(number))}

    def _known(self, subject: str, body: dict[str, Any]) -> int:
        schema = _whole(body)
        for version, number in enumerate(self._ids(subject), start=1):
            if self._schema(number) == schema:
                return version
        raise Refused(404, 40403, "Schema not found")

    def _registered(self, subject: str, body: dict[str, Any]) -> int:
        schema = _whole(body)
        self._check_valid(schema)
        ids = self.subjects.setdefault(subject, [])
        number = self.schemas.index(schema) + 1 if schema in self.schemas else 0
        if number in ids:
            return number
        if ids and (messages := self._objections(subject, self._schema(ids[-1]), schema)):
            raise Refused(409, 409, f"Schema being registered is incompatible with an earlier schema: {messages}")
        if not number:
            self.schemas.append(schema)
            number = len(self.schemas)
        ids.append(number)
        return number

    def _check_valid(self, schema: dict[str, Any]) -> None:
        try:
            if schema["schemaType"] == "AVRO":
                named: dict[str, Any] = {}
                self._add_references(schema, named)
                fastavro.parse_schema(json.loads(schema["schema"]), named_schemas=named)
            elif schema["schemaType"] == "JSON":
                json.loads(schema["schema"])
            elif "syntax" not in schema["schema"]:
                base64.b64decode(schema["schema"], validate=True)
        except Exception as error:
            raise Refused(422, 42201, f"Invalid schema: {error}") from error

    def _add_references(self, schema: dict[str, Any], named: dict[str, Any]) -> None:
        for each in schema["references"]:
            if each["name"] not in named:
                referred = self._schema(self._ids(each["subject"])[each["version"] - 1])
                self._add_references(referred, named)
                fastavro.parse_schema(json.loads(referred["schema"]), named_schemas=named)

    def _objections(self, subject: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
        """For Avro, BACKWARD: what is written with the old schema can be read with the new one."""
        level = self.levels.get(subject) or self.levels[""]
        if level == "NONE" or old["schemaType"] != "AVRO":
            return []
        writer, reader = json.loads(old["schema"]), json.loads(new["schema"])
        written = io.BytesIO()
        fastavro.schemaless_writer(written, writer, fastavro.utils.generate_one(writer))
        written.seek(0)
        try:
            fastavro.schemaless_reader(written, writer, reader)
        except Exception as error:
            return [f"READER_FIELD_MISSING_DEFAULT_VALUE or the like: {error}"]
        return []


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": body["schema"],
        "schemaType": body.get("schemaType") or "AVRO",
        "references": body.get("references") or [],
    }


def _without_usual(schema: dict[str, Any]) -> dict[str, Any]:
    """As the API has it: the type is left out for Avro, and references where there are none."""
    return {name: value for name, value in schema.items() if value and value != "AVRO"}


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            parts = urllib.parse.urlsplit(self.path)
            path = [urllib.parse.unquote(part) for part in parts.path.strip("/").split("/")]
            with registry.lock:
                registry.requests.append(f"{self.command} {self.path}")
                status, answer = self._answer(path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self, path: list[str], body: dict[str, Any]) -> tuple[int, Any]:
            if registry.trouble:
                status = registry.trouble.pop(0)
                return status, {"error_code": status * 100, "message": "in trouble"}
            if registry.authorization not in (None, self.headers.get("Authorization")):
                return 401, {"error_code": 401, "message": "Unauthorized"}
            try:
                return 200, registry.answer(self.command, path, body)
            except Refused as refused:
                return refused.status, {"error_code": refused.code, "message": str(refused)}

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: `registry.requests` has it."""

    return Handler


@contextmanager
def registry_server() -> Iterator[Registry]:
    registry = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(registry))
    registry.port = server.server_address[1]
    serve: Callable[[], None] = server.serve_forever
    thread = threading.Thread(target=serve, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
