"""Which serde a topic gets: the one given, the one named, or the one that its type asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.abc import Serde
from penstock.errors import ConfigError
from penstock.serde.bytes_and_text import BytesSerde, TextSerde
from penstock.serde.json import JsonSerde
from penstock.serde.msgpack import MsgpackSerde
from penstock.serde.plain import PlainSerde
from penstock.serde.types import is_protobuf, name_of


def choose_serde(given: object, form: Any, what: str) -> Serde:
    """The serde for values of type `form`: `given` itself, or the one of that name, or the type's own where None.

    ConfigError, beginning with `what`, where there is none.
    """
    if given is None:
        return _serde_of_type(form, what)
    if isinstance(given, str):
        if given not in _NAMED:
            raise ConfigError(f"{what}: there is no serde {given!r}: use one of {', '.join(_NAMED)}, or an object")
        return _NAMED[given](form, what)
    if isinstance(given, type):
        raise ConfigError(f"{what}: the serde {given.__name__} is a class: give an object of it, {given.__name__}(...)")
    if callable(getattr(given, "encode", None)) and callable(getattr(given, "decode", None)):
        return given  # type: ignore[return-value]  # as much as can be told
    raise ConfigError(
        f"{what}: {given!r} is no serde: give one of the names {', '.join(_NAMED)}, or an object with "
        "encode(value, topic) and decode(data, topic)"
    )


def _serde_of_type(form: Any, what: str) -> Serde:
    if isinstance(form, str):
        hint = f": did you mean serde={form!r}?" if form in _NAMED else ": give the type itself, without quotes"
        raise ConfigError(f"{what}: the type is the text {form!r}{hint}")
    if form in (bytes, bytearray, memoryview):
        return BytesSerde()
    if form is str:
        return TextSerde()
    if is_protobuf(form):
        return _protobuf(form, what)
    return _json(form, what)


def _of_one_type(serde: Callable[[], Serde], allowed: type) -> Callable[[Any, str], Serde]:
    """A serde that carries one type; a topic declared without a type has it, too."""

    def make(form: Any, what: str) -> Serde:
        if form not in (allowed, bytes, None):
            raise ConfigError(f"{what}: {serde()!r} carries {name_of(allowed)}, not {name_of(form)}")
        return serde()

    return make


def _json(form: Any, what: str) -> Serde:
    with _named(what):
        return JsonSerde(_unless_bytes(form))


def _msgpack(form: Any, what: str) -> Serde:
    with _named(what):
        return MsgpackSerde(_unless_bytes(form))


def _avro(form: Any, what: str) -> Serde:
    from penstock.serde.avro import AvroSerde

    with _named(what):
        return AvroSerde(form)


def _protobuf(form: Any, what: str) -> Serde:
    from penstock.serde.protobuf import ProtobufSerde

    with _named(what):
        return ProtobufSerde(form)


def _unless_bytes(form: Any) -> Any:
    """A topic whose type was not given has bytes; with a serde for values, that means any value."""
    return None if form is bytes else form


class _named:
    """Puts the name of the topic before a ConfigError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is ConfigError:
            raise ConfigError(f"{self._what}: {error}") from error


_NAMED: Final[Mapping[str, Callable[[Any, str], Serde]]] = {
    "bytes": _of_one_type(BytesSerde, bytes),
    "text": _of_one_type(TextSerde, str),
    "plain": _of_one_type(PlainSerde, bytes),
    "json": _json,
    "msgpack": _msgpack,
    "avro": _avro,
    "protobuf": _protobuf,
}
