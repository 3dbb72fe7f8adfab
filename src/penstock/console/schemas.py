"""Values that name the schema they were written with: a zero, the schema's number in a registry, and the rest."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from penstock.errors import MissingExtraError, PenstockError, RegistryError, SerdeError
from penstock.serde.registry.client import SchemaRegistry
from penstock.serde.registry.framing import HEAD_BYTES
from penstock.serde.registry.schema import SchemaKind

_LARGEST_ID: Final = 50_000_000
"""Bytes that would name a higher schema are most likely something else that begins with a zero."""
_PATIENCE_S: Final = 2.0
_BELIEVED_AWAY_S: Final = 30.0
"""After a registry could not be reached, nobody waits for it again for so long."""
_MOST_SERDES: Final = 1_000


def framed_schema(data: bytes) -> int | None:
    """The number of the schema that these bytes say they were written with; None when they do not look so."""
    if len(data) <= HEAD_BYTES or data[0] != 0:
        return None
    id = int.from_bytes(data[1:HEAD_BYTES])
    return id if 1 <= id <= _LARGEST_ID else None


class Schemas:
    """Decodes framed values with what a registry knows. Any thread may use it."""

    def __init__(self, url: str) -> None:
        self._registry = SchemaRegistry(url, timeout_s=_PATIENCE_S, attempts=1)
        self._lock = threading.Lock()
        self._serdes: dict[int, Any] = {}
        self._away_until_s = 0.0
        self._problem = ""

    def decode(self, data: bytes, topic: str) -> tuple[Any, str]:
        """The value, and the name of its form: avro or json. SerdeError says why there is none."""
        id = framed_schema(data)
        if id is None:
            raise SerdeError("it does not begin with a zero and the number of a schema")
        schema = self._schema(id)
        if schema.kind is SchemaKind.JSON:
            return data[HEAD_BYTES:], "json"
        if schema.kind is not SchemaKind.AVRO:
            raise SerdeError(f"schema {id} is of {schema.kind.value.lower()}, which the console does not decode")
        try:
            return self._serde(id, schema.text).decode(data, topic), "avro"
        except SerdeError:
            raise
        except (PenstockError, MissingExtraError) as error:
            raise SerdeError(f"schema {id}: {error}") from error

    def _schema(self, id: int) -> Any:
        if time.monotonic() < self._away_until_s:
            raise SerdeError(self._problem)
        try:
            return self._registry.schema(id)
        except RegistryError as error:
            if error.status is None or error.status >= 500:
                self._problem = f"the schema registry cannot be asked: {error}"
                self._away_until_s = time.monotonic() + _BELIEVED_AWAY_S
            raise SerdeError(f"schema {id}: {error}") from error

    def _serde(self, id: int, text: str) -> Any:
        from penstock.serde.avro import AvroSerde

        with self._lock:
            serde = self._serdes.get(id)
        if serde is None:
            serde = AvroSerde(text, registry=self._registry, register=False)
            with self._lock:
                if len(self._serdes) >= _MOST_SERDES:
                    self._serdes.clear()
                self._serdes[id] = serde
        return serde
