"""Topics: a name, the type of the values, and their encoding."""

from __future__ import annotations

import builtins
import datetime
import functools
import math
import time
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, overload

from penstock.abc import Serde
from penstock.errors import ConfigError, InvalidTopicError, PenstockError, SerdeError
from penstock.model import DELIVER_AT, Headers, NewRecord, check_topic_name, milliseconds
from penstock.serde.avro import AvroSerde
from penstock.serde.json import JsonSerde
from penstock.serde.msgpack import MsgpackSerde
from penstock.serde.plain import (
    BytesSerde,
    NewHeaders,
    PlainSerde,
    TextSerde,
    encode_as_json_unless_text,
    encode_headers,
)
from penstock.serde.protobuf import ProtobufSerde
from penstock.serde.typed import undecodable
from penstock.serde.types import is_protobuf, name_of

if TYPE_CHECKING:
    from typing import _SpecialForm


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


T = TypeVar("T")

_PLAIN: Final = PlainSerde()
_LONGEST_DELAY_S: Final = 366 * 24 * 3600
_MOST_NAMES: Final = 10_000
_names: Final[set[str]] = set()
"""Topic names that were checked."""


class SendOptions(TypedDict, total=False):
    """What `send` takes besides the topic, the value and the key."""

    headers: NewHeaders
    timestamp: datetime.datetime | int | None
    """The event time: a datetime with a time zone, or milliseconds since 1970. None: now."""
    partition: int | None
    """None: the partition of its key, or any."""
    delay_s: float | None
    """The library's consumers handle the record this many seconds from now. Other readers see it at once: the delay is
    in the header `penstock-deliver-at`."""


class Topic(Generic[T]):
    """A topic and the type of its values: `Topic("orders", Order, key=lambda order: order.customer)`.

    `type` may be bytes, str, a dataclass, an attrs or pydantic class, a msgspec.Struct, a TypedDict, a NamedTuple, a
    Protobuf message, a plain type or a union; None or Any means any JSON value. The encoding follows from the type,
    unless `serde` names it ("json", "msgpack", "avro", "protobuf", "text", "bytes") or is an object of your own. `key`
    computes the key of a value. `key_serde` encodes keys; the default sends text and bytes as they are. `partitions` is
    used if the topic has to be created.

    A Topic is immutable. Topics are equal if they were created with equal arguments.
    """

    __slots__ = ("__weakref__", "_key_decoder", "decoder", "key", "key_serde", "name", "partitions", "serde", "type")

    name: str
    type: Any
    key: Callable[[T], object] | None
    serde: Serde
    key_serde: Serde
    partitions: int | None
    _key_decoder: Callable[[bytes], Any]
    decoder: Callable[[bytes], T]
    """Decode bytes without checks, for hot loops. It does not take None, and may raise anything: pass the same bytes to
    `decode` for a useful error."""

    @overload
    def __init__(
        self: Topic[bytes],
        name: str,
        *,
        key: Callable[[bytes], object] | None = None,
        serde: None = None,
        key_serde: object = None,
        partitions: int | None = None,
    ) -> None: ...

    # None of the overloads after that with `type[T]` takes a class together with a key: mypy would find two that match
    # a lambda, and infer Topic[Any]. The one for unions comes first, because mypy sees a class in `Order | None`.

    @overload
    def __init__(
        self: Topic[Any],
        name: str,
        type: types.UnionType | _SpecialForm | None,
        *,
        key: Callable[[Any], object] | None = None,
        serde: object = None,
        key_serde: object = None,
        partitions: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        type: builtins.type[T],
        *,
        key: Callable[[T], object] | None = None,
        serde: object = None,
        key_serde: object = None,
        partitions: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Topic[Any],
        name: str,
        *,
        key: Callable[[Any], object] | None = None,
        serde: object,
        key_serde: object = None,
        partitions: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Topic[Any],
        name: str,
        type: object,
        *,
        serde: object = None,
        key_serde: object = None,
        partitions: int | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        type: Any = bytes,
        *,
        key: Callable[[Any], object] | None = None,
        serde: object = None,
        key_serde: object = None,
        partitions: int | None = None,
    ) -> None:
        what = f"topic {name!r}"
        check_topic_name(name)
        if key is not None and not callable(key):
            raise ConfigError(f"{what}: the key {key!r} must be a function that computes the key of a value")
        if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int)):
            raise ConfigError(f"{what}: partitions={partitions!r} must be an integer >= 1")
        if partitions is not None and partitions < 1:
            raise ConfigError(f"{what}: partitions={partitions} must be an integer >= 1")
        chosen = choose_serde(serde, type, what)
        chosen_for_keys = _serde_of_keys(key_serde, what)
        for attribute, value in (
            ("name", name),
            ("type", type),
            ("key", key),
            ("serde", chosen),
            ("key_serde", chosen_for_keys),
            ("partitions", partitions),
            ("decoder", _decoder_of(chosen, name)),
            ("_key_decoder", _decoder_of(chosen_for_keys, name)),
        ):
            object.__setattr__(self, attribute, value)

    def new_record(
        self,
        value: T | None,
        key: object = None,
        headers: NewHeaders = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
        delay_s: float | None = None,
        *,
        now_ms: int | None = None,
    ) -> NewRecord:
        """Encode a value as a record to append.

        The topic's key function computes the key unless one is given. None is a tombstone: a record without a value,
        which deletes its key in a compacted topic and needs a key. `delay_s` counts from `now_ms`, by default now.
        Raises SerdeError for a value or key of the wrong type.
        """
        data = self.serde.encode(value, self.name)
        if key is None and self.key is not None:
            key = self._made_key(value)
        timestamp_ms = None if timestamp is None else timestamp_ms_of(timestamp)
        if partition is not None:
            _check_partition(self.name, partition)
        return NewRecord(
            self.name,
            data,
            None if key is None else self._encoded_key(key),
            _headers_of(headers, delay_s, now_ms) if headers is not None or delay_s is not None else (),
            timestamp_ms,
            partition,
        )

    def decode(self, data: bytes | None) -> T | None:
        """Decode the value of a record. None stays None.

        Raises SerdeError if the bytes cannot be decoded, and RegistryError if the schema registry cannot be asked: then
        the bytes may be good.
        """
        if data is None:
            return None
        try:
            return self.decoder(data)
        except PenstockError:
            raise
        except Exception as error:
            raise undecodable(self.name, data, _carried(self.serde, self.type), error) from error

    def decode_key(self, data: bytes | None) -> Any:
        """Decode the key of a record; bytes unless the topic has a `key_serde`."""
        if data is None:
            return None
        try:
            return self._key_decoder(data)
        except PenstockError:
            raise
        except Exception as error:
            raise undecodable(self.name, data, f"key, {_carried(self.key_serde, None)}", error) from error

    def _made_key(self, value: T | None) -> object:
        if value is None:
            raise SerdeError(f"topic {self.name!r}: a record without a value needs a key: pass key=...")
        assert self.key is not None
        try:
            key = self.key(value)
        except Exception as error:
            raise SerdeError(
                f"topic {self.name!r}: the key function failed for this {type(value).__name__}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if key is None:
            raise SerdeError(
                f"topic {self.name!r}: the key function returned None for this {type(value).__name__}: a topic with "
                "a key function needs a key for every record"
            )
        return key

    def _encoded_key(self, key: object) -> bytes | None:
        if isinstance(self.key_serde, PlainSerde):
            # Most keys are text, and the f-string would cost more than everything else.
            if type(key) is str and key.isascii():
                return key.encode()
            return encode_as_json_unless_text(key, f"topic {self.name!r}: a key")
        try:
            return self.key_serde.encode(key, self.name)
        except SerdeError as error:
            raise SerdeError(f"the key: {error}") from error

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} is immutable: create another Topic")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self!r} is immutable: create another Topic")

    def _given(self) -> tuple[object, ...]:
        return (self.name, self.type, self.key, self.partitions, self.serde, self.key_serde)

    def __eq__(self, other: object) -> bool:
        return self._given() == other._given() if isinstance(other, Topic) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        given = {"key": self.key, "serde": self.serde, "key_serde": self.key_serde, "partitions": self.partitions}
        return functools.partial(Topic, self.name, self.type, **given), ()

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {name_of(self.type)})"

    def __str__(self) -> str:
        return self.name


def new_record(
    topic: str | Topic[Any],
    value: object,
    key: object = None,
    headers: NewHeaders = None,
    timestamp: datetime.datetime | int | None = None,
    partition: int | None = None,
    delay_s: float | None = None,
    now_ms: int | None = None,
) -> NewRecord:
    """A record for a Topic or a topic name. With a name, bytes and text are sent as they are, the rest as JSON."""
    if isinstance(topic, Topic):
        return topic.new_record(value, key, headers, timestamp, partition, delay_s, now_ms=now_ms)
    if type(topic) is not str or topic not in _names:
        _check_name(topic)
    if partition is not None:
        _check_partition(topic, partition)
    return NewRecord(
        topic,
        value if type(value) is bytes else encode_as_json_unless_text(value, "a value"),
        None if key is None else encode_as_json_unless_text(key, "a key"),
        _headers_of(headers, delay_s, now_ms) if headers is not None or delay_s is not None else (),
        None if timestamp is None else timestamp_ms_of(timestamp),
        partition,
    )


def _headers_of(headers: NewHeaders, delay_s: float | None, now_ms: int | None) -> Headers:
    """The headers to send, including that of a delay. Raises ConfigError for an invalid delay."""
    encoded = encode_headers(headers)
    if delay_s is None:
        return encoded
    if isinstance(delay_s, bool) or not isinstance(delay_s, int | float) or not math.isfinite(delay_s) or delay_s < 0:
        raise ConfigError(f"delay_s={delay_s!r} must be a number of seconds >= 0")
    if delay_s > _LONGEST_DELAY_S:
        raise ConfigError(
            f"delay_s={delay_s!r} is longer than a year: store such a record elsewhere, and send it when it is due"
        )
    if delay_s == 0:
        return encoded
    due_ms = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) + math.ceil(delay_s * 1000)
    return (*(pair for pair in encoded if pair[0] != DELIVER_AT), (DELIVER_AT, str(due_ms).encode()))


def _check_name(topic: object) -> None:
    """Raise InvalidTopicError unless this is a Topic or a valid name. A checked name is not checked again."""
    if not isinstance(topic, str):
        raise InvalidTopicError(f"{topic!r} is not a topic: pass its name or a Topic")
    check_topic_name(topic)
    if len(_names) < _MOST_NAMES:
        _names.add(topic)


def _check_partition(topic: str, partition: object) -> None:
    if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
        raise ConfigError(f"topic {topic!r}: {partition!r} is not a partition: use 0, 1, 2, …")


def timestamp_ms_of(timestamp: datetime.datetime | int) -> int:
    """A timestamp in milliseconds. Raises ConfigError if it cannot be sent."""
    timestamp_ms = milliseconds(timestamp, "the timestamp")
    if timestamp_ms <= 0:
        raise ConfigError(f"the timestamp {timestamp!r} must be after 1970")
    return timestamp_ms


def topic_of(topic: str | Topic[Any]) -> Topic[Any]:
    """A topic from its name: it sends bytes, text or JSON, and reads bytes. A Topic is returned as it is."""
    return topic if isinstance(topic, Topic) else Topic(topic, serde=_PLAIN)


def _serde_of_keys(given: object, what: str) -> Serde:
    if given is None:
        return _PLAIN
    if isinstance(given, type):  # the type of the keys
        return choose_serde(None, given, f"{what}, its keys")
    return choose_serde(given, None, f"{what}, its keys")


def _carried(serde: Serde, form: Any) -> str:
    """A description of a serde's bytes, for messages."""
    return getattr(serde, "carries", None) or f"{name_of(form)} of {serde!r}"


def _decoder_of(serde: Serde, topic: str) -> Callable[[bytes], Any]:
    make: Callable[[str], Callable[[bytes], Any]] | None = getattr(serde, "decoder", None)
    if make is not None:
        return make(topic)

    def decode(data: bytes) -> Any:
        return serde.decode(data, topic)

    return decode
