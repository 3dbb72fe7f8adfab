"""What the serdes of typed values share: the check of what goes out, and errors that name the topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import ConfigError, PenstockError, SerdeError
from penstock.serde.made_again import MadeAgain
from penstock.serde.types import classes_of, is_anything, is_pydantic, is_pydantic_error, name_of

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class TypedSerde(MadeAgain):
    """Values of one type, by way of two functions that know nothing of topics.

    With `verify`, what was encoded is decoded again before it is given out: a field with a wrong value, which its class
    did not notice, is told to the one who sends it and not to those who read it. It costs a fraction of a microsecond.
    """

    FORMAT = ""
    """What the bytes are, for messages."""

    def __init__(self, type: Any, encode: Encode, decode: Decode, *, verify: bool) -> None:
        self.type = type
        self.made_with = ((type,), {"verify": verify})
        self._encode = encode
        self._decode = decode
        self._verify = verify and not is_anything(type)
        self._classes = None if is_anything(type) else classes_of(type)

    def encode(self, value: object, topic: str) -> bytes | None:
        if value is None:
            return None
        if self._classes is not None and not isinstance(value, self._classes):
            raise SerdeError(
                f"topic {topic!r} carries {name_of(self.type)}, and was given a value of type {type(value).__name__}"
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
                    f"topic {topic!r}: this {type(value).__name__} could be written as {self.FORMAT}, but nobody could "
                    f"read it as {name_of(self.type)}: {reason(error)}"
                ) from error
        return data

    def decode(self, data: bytes | None, topic: str) -> Any:
        if data is None:
            return None
        try:
            return self._decode(data)
        except PenstockError:
            raise
        except Exception as error:
            raise undecodable(topic, data, self.carries, error) from error

    @property
    def carries(self) -> str:
        """What the bytes are, for messages."""
        return f"{name_of(self.type)} in {self.FORMAT}"

    def decoder(self, topic: str) -> Decode:
        return self._decode

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of(self.type)})"


def undecodable(topic: str, data: bytes, what: str, error: Exception) -> SerdeError:
    """The error for bytes that could not be read."""
    return SerdeError(f"topic {topic!r}: {len(data)} bytes are no {what}: {reason(error)}")


def reason(error: Exception) -> str:
    """What an error says, on one line; pydantic's say it on several, with an address for each."""
    if is_pydantic_error(error):
        parts = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())  # type: ignore[attr-defined]
        return "; ".join(parts)
    return str(error) or type(error).__name__


def check_expressible(form: Any, what: str) -> None:
    """ConfigError where the type contains something that msgspec cannot read."""
    try:
        unknown = _unknown_in(msgspec.inspect.type_info(form), set())
    except (TypeError, NameError) as error:
        raise ConfigError(f"{name_of(form)} cannot be {what}: {why_untold(error)}") from error
    if unknown is not None:
        why = "it is a pydantic model inside another class" if is_pydantic(unknown) else "nobody knows how to read it"
        inside = "" if unknown is form else f" contains {name_of(unknown)}, which"
        raise ConfigError(
            f"{name_of(form)}{inside} cannot be {what}: {why}. Give a dataclass, an attrs or pydantic class, a "
            "msgspec.Struct, a TypedDict, a NamedTuple, a plain type, or a serde of your own"
        )


def why_untold(error: TypeError | NameError) -> str:
    """Why msgspec could not make out a type."""
    if isinstance(error, NameError):
        return f"its annotations say {error.name}, which cannot be found: define it at the top of its module"
    return str(error)


def _unknown_in(info: Any, seen: set[int]) -> Any:
    """The first type in the description that msgspec has no form for; None where there is none."""
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls
    if isinstance(info, tuple):
        return next((found for part in info if (found := _unknown_in(part, seen)) is not None), None)
    if id(info) in seen or not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        return None
    seen.add(id(info))
    parts = tuple(getattr(info, name) for name in info.__struct_fields__ if name not in ("default", "default_factory"))
    return _unknown_in(parts, seen)
