"""Topics: the name of a stream, what its records are, and how they stand on the wire."""

from __future__ import annotations

import builtins
import datetime
import functools
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, overload

from penstock.abc import Serde
from penstock.errors import ConfigError, InvalidTopicError, PenstockError, SerdeError
from penstock.model import NewRecord, milliseconds
from penstock.serde.choosing import choose_serde
from penstock.serde.plain import NewHeaders, PlainSerde, encode_as_json_unless_text, encode_headers
from penstock.serde.typed import undecodable
from penstock.serde.types import name_of

T = TypeVar("T")

_PLAIN: Final = PlainSerde()


class Topic(Generic[T]):
    """A topic and what it carries: `Topic("orders", Order, key=lambda order: order.customer)`.

    `type` is what values are: bytes, text (str), a dataclass, an attrs or pydantic class, a msgspec.Struct, a
    TypedDict, a NamedTuple, a Protobuf message, plain types and unions; None or Any is whatever JSON can express.
    How values become bytes follows from the type, unless `serde` names it ("json", "msgpack", "avro", "protobuf",
    "text", "bytes") or is an object of your own. `key` makes the key of a value; `key_serde` its bytes: text and bytes
    go as they are unless given. `partitions` is how many a topic gets that is created.

    It never changes. Topics are equal when everything they were given is.
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
    """The bare way from bytes to a value, for hot loops. It takes no None, and raises whatever it likes: give the same
    bytes to `decode` for an error that says what is wrong."""

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
        type: Any = bytes,
        *,
        key: Callable[[Any], object] | None = None,
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
        if not isinstance(name, str) or not name:
            raise InvalidTopicError(f"{name!r} is no name of a topic: give text that is not empty")
        if key is not None and not callable(key):
            raise ConfigError(f"{what}: the key {key!r} is no function: give one that makes the key of a value")
        if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int)):
            raise ConfigError(f"{what}: partitions={partitions!r} is no number")
        if partitions is not None and partitions < 1:
            raise ConfigError(f"{what}: partitions={partitions} is less than 1")
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
    ) -> NewRecord:
        """The value as a record to be appended.

        Without a key given, the topic's key function makes it. None is a record without a value, which in a compacted
        topic removes its key: it needs one given. Raises SerdeError for a value or a key that the topic does not carry.
        """
        data = self.serde.encode(value, self.name)
        if key is None and self.key is not None:
            key = self._made_key(value)
        timestamp_ms = None if timestamp is None else timestamp_ms_of(timestamp)
        if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int) or partition < 0):
            raise ConfigError(f"topic {self.name!r}: {partition!r} is no partition: they are 0, 1, 2, …")
        return NewRecord(
            self.name,
            data,
            None if key is None else self._encoded_key(key),
            encode_headers(headers) if headers is not None else (),
            timestamp_ms,
            partition,
        )

    def decode(self, data: bytes | None) -> T | None:
        """The value of a record. None, a record without a value, stays None.

        SerdeError when the bytes are no such value. A RegistryError, where there is a registry, says that it could not
        be told: the bytes may be good.
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
        """The key of a record; bytes unless the topic has a `key_serde`."""
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
            raise SerdeError(f"topic {self.name!r}: a record without a value needs its key given: key=...")
        assert self.key is not None
        try:
            key = self.key(value)
        except Exception as error:
            raise SerdeError(
                f"topic {self.name!r}: its key function could not make the key of this {type(value).__name__}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if key is None:
            raise SerdeError(
                f"topic {self.name!r}: its key function gave None for this {type(value).__name__}: a topic that has "
                "a key needs one for every record"
            )
        return key

    def _encoded_key(self, key: object) -> bytes | None:
        if isinstance(self.key_serde, PlainSerde):
            # Most keys are text, and the f-string costs more than all the rest.
            if type(key) is str and key.isascii():
                return key.encode()
            return encode_as_json_unless_text(key, f"topic {self.name!r}: a key")
        try:
            return self.key_serde.encode(key, self.name)
        except SerdeError as error:
            raise SerdeError(f"the key: {error}") from error

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} cannot be changed: make another Topic")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self!r} cannot be changed: make another Topic")

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
) -> NewRecord:
    """A record for a Topic, or for one known by its name alone: bytes and text go as they are, the rest as JSON."""
    if isinstance(topic, Topic):
        return topic.new_record(value, key, headers, timestamp, partition)
    return NewRecord(
        topic,
        value if type(value) is bytes else encode_as_json_unless_text(value, "a value"),
        None if key is None else encode_as_json_unless_text(key, "a key"),
        encode_headers(headers) if headers is not None else (),
        None if timestamp is None else timestamp_ms_of(timestamp),
        partition,
    )


def timestamp_ms_of(timestamp: datetime.datetime | int) -> int:
    """A timestamp as it is sent. ConfigError for one that cannot be."""
    timestamp_ms = milliseconds(timestamp, "the timestamp")
    if timestamp_ms <= 0:
        raise ConfigError(f"the timestamp {timestamp!r} is not after 1970: it cannot be sent")
    return timestamp_ms


def topic_of(topic: str | Topic[Any]) -> Topic[Any]:
    """A topic from its name: it takes anything, as bytes, text or JSON, and gives bytes. A Topic stays what it is."""
    return topic if isinstance(topic, Topic) else Topic(topic, serde=_PLAIN)


def _serde_of_keys(given: object, what: str) -> Serde:
    if given is None:
        return _PLAIN
    if isinstance(given, type):  # the type of the keys
        return choose_serde(None, given, f"{what}, its keys")
    return choose_serde(given, None, f"{what}, its keys")


def _carried(serde: Serde, form: Any) -> str:
    """What a serde's bytes are, for messages."""
    return getattr(serde, "carries", None) or f"{name_of(form)} of {serde!r}"


def _decoder_of(serde: Serde, topic: str) -> Callable[[bytes], Any]:
    make: Callable[[str], Callable[[bytes], Any]] | None = getattr(serde, "decoder", None)
    if make is not None:
        return make(topic)

    def decode(data: bytes) -> Any:
        return serde.decode(data, topic)

    return decode
