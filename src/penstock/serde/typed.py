"""The base of serdes for typed values: type checks, verification, and errors that name the topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import ConfigError, PenstockError, SerdeError
from penstock.serde.made_again import MadeAgain
from penstock.serde.registry.framing import HEAD_BYTES, Framing, schema_id
from penstock.serde.types import classes_of, is_anything, is_pydantic, is_pydantic_error, name_of

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class TypedSerde(MadeAgain):
    """Encodes values of one type with two functions that know nothing of topics.

    With `verify`, every encoded value is decoded again, so that a wrong field fails at the sender and not at the
    readers. It costs a fraction of a microsecond. With a `framing`, the id of the schema precedes each value.
    """

    FORMAT = ""
    """The name of the format, for messages."""

    def __init__(
        self,
        type: Any,
        encode: Encode,
        decode: Decode,
        *,
        verify: bool = False,
        framing: Framing | None = None,
        name: str | None = None,
    ) -> None:
        """`name` is that of the type, for messages, unless it is Python's."""
        self.type = type
        self._encode = encode
        self._decode = decode
        self._verify = verify and not is_anything(type)
        self._classes = None if is_anything(type) else classes_of(type)
        self._framing = framing
        self._type_name = name or name_of(type)
        self.carries = f"{self._type_name} in {self.FORMAT}"
        """A description of the bytes, for messages."""

    def encode(self, value: object, topic: str) -> bytes | None:
        if value is None:
            return None
        if self._classes is not None and not isinstance(value, self._classes):
            raise SerdeError(
                f"topic {topic!r} carries {self._type_name}, and was given a value of type {type(value).__name__}"
            )
        try:
            data = self._encode(value)
        except Exception as error:
            raise SerdeError(
                f"topic {topic!r}: a value of type {type(value).__name__} cannot be written as {self.FORMAT}: "
                f"{reason(error)}"
            ) from error
        if self._verify:
            try:
                self._decode(data)
            except Exception as error:
                raise SerdeError(
                    f"topic {topic!r}: this {type(value).__name__} can be written as {self.FORMAT}, but cannot be "
                    f"read as {self._type_name}: {reason(error)}"
                ) from error
        return data if self._framing is None else self._framing.head(topic) + data

    def decode(self, data: bytes | None, topic: str) -> Any:
        if data is None:
            return None
        try:
            return self.decoder(topic)(data)
        except PenstockError:
            raise
        except Exception as error:
            raise undecodable(topic, data, self.carries, error) from error

    def decoder(self, topic: str) -> Decode:
        if self._framing is None:
            return self._decode

        def decode(data: bytes) -> Any:
            schema_id(data, topic)
            return self._decode(data[HEAD_BYTES:])

        return decode

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of(self.type)})"


def undecodable(topic: str, data: bytes, what: str, error: Exception) -> SerdeError:
    """The error for bytes that could not be decoded."""
    return SerdeError(f"topic {topic!r}: {len(data)} bytes are not {what}: {reason(error)}")


def reason(error: Exception) -> str:
    """The text of an error on one line; those of pydantic and fastavro have several."""
    if is_pydantic_error(error):
        parts = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())  # type: ignore[attr-defined]
        return "; ".join(parts)
    errors = getattr(error, "errors", None)
    if isinstance(errors, list | tuple):
        return "; ".join(map(str, errors))
    return str(error) or type(error).__name__


def check_expressible(form: Any, what: str) -> None:
    """Raise ConfigError if the type contains something that msgspec cannot decode."""
    try:
        unknown = _unknown_in(msgspec.inspect.type_info(form), set())
    except (TypeError, NameError) as error:
        raise ConfigError(f"{name_of(form)} cannot be {what}: {unresolved_type(error)}") from error
    if unknown is not None:
        why = "it is a pydantic model inside another class" if is_pydantic(unknown) else "its type is not supported"
        inside = "" if unknown is form else f" contains {name_of(unknown)}, which"
        raise ConfigError(
            f"{name_of(form)}{inside} cannot be {what}: {why}. Give a dataclass, an attrs or pydantic class, a "
            "msgspec.Struct, a TypedDict, a NamedTuple, a plain type, or a serde of your own"
        )


def unresolved_type(error: TypeError | NameError) -> str:
    """Why msgspec could not resolve a type."""
    if isinstance(error, NameError):
        return f"its annotations say {error.name}, which was not found: define it at module level"
    return str(error)


def _unknown_in(info: Any, seen: set[int]) -> Any:
    """The first type in the description that msgspec does not support; None if there is none."""
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls
    if isinstance(info, tuple):
        return next((found for part in info if (found := _unknown_in(part, seen)) is not None), None)
    if id(info) in seen or not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        return None
    seen.add(id(info))
    parts = tuple(getattr(info, name) for name in info.__struct_fields__ if name not in ("default", "default_factory"))
    return _unknown_in(parts, seen)
