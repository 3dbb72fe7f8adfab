"""Choosing the serde of a topic: an object, a name, or by the type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.abc import Serde
from penstock.errors import ConfigError
from penstock.serde.avro import AvroSerde
from penstock.serde.json import JsonSerde
from penstock.serde.msgpack import MsgpackSerde
from penstock.serde.plain import BytesSerde, PlainSerde, TextSerde
from penstock.serde.protobuf import ProtobufSerde
from penstock.serde.types import is_protobuf, name_of


def choose_serde(given: object, form: Any, what: str) -> Serde:
    """The serde for values of type `form`: `given` itself, the one of that name, or for None the type's default.

    Raises ConfigError, starting with `what`, if there is none.
    """
    if given is None:
        given = _name_for_type(form, what)
    if isinstance(given, str):
        if given not in _NAMED:
            raise ConfigError(f"{what}: there is no serde {given!r}: use one of {', '.join(_NAMED)}, or an object")
        try:
            return _NAMED[given](form)
        except ConfigError as error:
            raise ConfigError(f"{what}: {error}") from error
    if isinstance(given, type):
        raise ConfigError(f"{what}: the serde {given.__name__} is a class: pass an instance, {given.__name__}(...)")
    if callable(getattr(given, "encode", None)) and callable(getattr(given, "decode", None)):
        return given  # type: ignore[return-value]  # as much as can be told
    raise ConfigError(
        f"{what}: {given!r} is not a serde: use one of the names {', '.join(_NAMED)}, or an object with "
        "encode(value, topic) and decode(data, topic)"
    )


def _name_for_type(form: Any, what: str) -> str:
    if isinstance(form, str):
        hint = f": did you mean serde={form!r}?" if form in _NAMED else ": pass the type itself, without quotes"
        raise ConfigError(f"{what}: the type is the text {form!r}{hint}")
    if form in (bytes, bytearray, memoryview):
        return "bytes"
    if form is str:
        return "text"
    return "protobuf" if is_protobuf(form) else "json"


def _for_one_type(serde: Serde, allowed: tuple[type, ...]) -> Callable[[Any], Serde]:
    """A serde for one type, which is also that of a topic without a type."""

    def choose(form: Any) -> Serde:
        if form not in (*allowed, bytes, None):
            raise ConfigError(f"{serde!r} carries {name_of(allowed[0])}, not {name_of(form)}")
        return serde

    return choose


def _unless_bytes(form: Any) -> Any:
    """A topic without a type carries bytes; with a serde for values, that means any value."""
    return None if form is bytes else form


_NAMED: Final[Mapping[str, Callable[[Any], Serde]]] = {
    "bytes": _for_one_type(BytesSerde(), (bytes, bytearray, memoryview)),
    "text": _for_one_type(TextSerde(), (str,)),
    "plain": _for_one_type(PlainSerde(), (bytes,)),
    "json": lambda form: JsonSerde(_unless_bytes(form)),
    "msgpack": lambda form: MsgpackSerde(_unless_bytes(form)),
    "avro": AvroSerde,
    "protobuf": ProtobufSerde,
}
