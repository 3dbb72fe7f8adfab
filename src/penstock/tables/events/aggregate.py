"""`Aggregate`: state as a fold of events, and how its events and its state are encoded."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform

import msgspec

from penstock.errors import ConfigError, SerdeError
from penstock.serde import JsonSerde

Function = TypeVar("Function", bound=Callable[..., Any])
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

_APPLIES: Final = "__penstock_applies__"
_UPCASTS: Final = "__penstock_upcasts__"


@dataclass_transform()
class Aggregate:
    """The base class of aggregates: fields with defaults, and one method for each type of event.

    ```python
    class Account(ps.Aggregate):
        cents: int = 0

        @ps.applies(Deposited)
        def deposited(self, event: Deposited) -> None:
            self.cents += event.cents
    ```

    Subclasses are dataclasses. A method changes the state and does nothing else: it runs again at each replay. If it
    raises, the event is not stored.
    """

    snapshot_schema: ClassVar[int] = 1
    """Raise it when fields or methods change so that the same events make another state: older snapshots no longer
    count, and states are folded from the events again."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(cls)


def applies(event: type, *, name: str | None = None) -> Callable[[Function], Function]:
    """Mark the method of an `Aggregate` that applies events of this type.

    `name` is how events are called in the topic, by default that of the class. Keep it when the class is renamed.
    """
    if not isinstance(event, type):
        raise ConfigError(f"applies({event!r}): pass the class of the event, as in @applies(Deposited)")

    def mark(function: Function) -> Function:
        setattr(function, _APPLIES, (event, name or event.__name__))
        return function

    return mark


def upcasts(name: str, schema: int) -> Callable[[Function], Function]:
    """Mark the function of an `Aggregate` that turns the data of an event from this schema into the next one.

    It takes and returns a dictionary: `@staticmethod`, then `@ps.upcasts("Deposited", 1)`. Events are stored with the
    schema after the last upcaster, so the first version of an event needs none, and has the schema 1.
    """
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise ConfigError(f"upcasts({name!r}, {schema!r}): the schema must be an integer >= 1")

    def mark(function: Function) -> Function:
        setattr(getattr(function, "__func__", function), _UPCASTS, (name, schema))
        return function

    return mark


class Envelope(msgspec.Struct, frozen=True):
    """The value of an event's record."""

    event: str
    aggregate: str
    version: int
    """Of the aggregate after this event: 1 for its first."""
    schema: int
    append: str
    """Names the append that stored it: all its events are in one transaction."""
    data: msgspec.Raw


@dataclass(frozen=True, slots=True)
class EventKind:
    """A type of event."""

    name: str
    type: type
    apply: Callable[[Any, Any], None]
    serde: JsonSerde
    upcasters: Sequence[Upcaster]

    @property
    def schema(self) -> int:
        return len(self.upcasters) + 1


AggregateT = TypeVar("AggregateT", bound=Aggregate)


class AggregateType(Generic[AggregateT]):
    """What an aggregate's class declares. Raises ConfigError for a class that cannot be folded."""

    def __init__(self, kind: type[AggregateT], topic: str) -> None:
        if not isinstance(kind, type) or not issubclass(kind, Aggregate) or kind is Aggregate:
            raise ConfigError(f"{kind!r} must be a subclass of penstock.Aggregate")
        self.kind = kind
        self._topic = topic
        self._serde = JsonSerde(kind, verify=False)
        try:
            kind()
        except TypeError as error:
            raise ConfigError(
                f"{kind.__name__}: each field needs a default, the state before any event: {error}"
            ) from None
        functions = [
            getattr(member, "__func__", member)
            for base in reversed(kind.__mro__)
            for member in vars(base).values()
            if callable(member) or isinstance(member, staticmethod)
        ]
        upcasters = _upcasters(kind, functions)
        self._by_name: dict[str, EventKind] = {}
        self._by_type: dict[type, EventKind] = {}
        for function in functions:
            event, name = getattr(function, _APPLIES, (None, ""))
            if event is not None:
                found = EventKind(name, event, function, JsonSerde(event), upcasters.pop(name, []))
                self._by_name[name] = self._by_type[event] = found
        if upcasters:
            raise ConfigError(f"{kind.__name__}: upcasts({min(upcasters)!r}, ...), but no method applies this event")
        if not self._by_type:
            raise ConfigError(f"{kind.__name__} applies no events: mark its methods with @applies(EVENT)")

    @property
    def snapshot_schema(self) -> int:
        return self.kind.snapshot_schema

    def folded(self, state: AggregateT, events: Sequence[Any]) -> AggregateT:
        """A copy of the state with the events applied."""
        new = copy.deepcopy(state)
        for event in events:
            self._kind_of(event).apply(new, event)
        return new

    def fold(self, state: AggregateT, envelopes: Sequence[bytes]) -> None:
        """Apply stored events to the state."""
        for data in envelopes:
            envelope = opened(data, self._topic)
            kind = self._named(envelope)
            kind.apply(state, self._decoded(kind, envelope))

    def encode(self, id: str, version: int, append: str, event: Any) -> bytes:
        kind = self._kind_of(event)
        data = kind.serde.encode(event, self._topic)
        return msgspec.json.encode(Envelope(kind.name, id, version, kind.schema, append, msgspec.Raw(data or b"null")))

    def event(self, envelope: Envelope) -> Any:
        """The event in its newest schema."""
        return self._decoded(self._named(envelope), envelope)

    def encode_state(self, state: AggregateT) -> bytes:
        return self._serde.encode(state, self._topic) or b"null"

    def decode_state(self, data: bytes) -> AggregateT:
        state: AggregateT = self._serde.decode(data, self._topic)
        return state

    def _kind_of(self, event: Any) -> EventKind:
        found = self._by_type.get(type(event))
        if found is None:
            known = ", ".join(sorted(each.__name__ for each in self._by_type))
            raise ConfigError(
                f"{self.kind.__name__} does not apply {type(event).__name__}: add a method with "
                f"@applies({type(event).__name__}), or append one of {known}"
            )
        return found

    def _named(self, envelope: Envelope) -> EventKind:
        found = self._by_name.get(envelope.event)
        if found is None:
            raise ConfigError(
                f"topic {self._topic!r} has events {envelope.event!r}, which {self.kind.__name__} does not apply: add "
                f'a method with @applies(..., name="{envelope.event}"), even if it does nothing'
            )
        return found

    def _decoded(self, kind: EventKind, envelope: Envelope) -> Any:
        if envelope.schema == kind.schema:
            return kind.serde.decode(bytes(envelope.data), self._topic)
        if envelope.schema > kind.schema:
            raise SerdeError(
                f"topic {self._topic!r}: an event {kind.name!r} has the schema {envelope.schema}, and this program "
                f"knows only {kind.schema}: run the newer program that wrote it"
            )
        data = msgspec.json.decode(envelope.data)
        for upcaster in kind.upcasters[envelope.schema - 1 :]:
            data = upcaster(data)
        return kind.serde.decode(msgspec.json.encode(data), self._topic)


_open: Final = msgspec.json.Decoder(Envelope).decode


def opened(data: bytes | None, topic: str) -> Envelope:
    """The envelope of a record's value."""
    try:
        return _open(data or b"")
    except msgspec.DecodeError as error:
        raise SerdeError(
            f"topic {topic!r} has a record that no EventStore has written ({error}): events need a topic of their own"
        ) from error


def _upcasters(kind: type, functions: Sequence[Any]) -> dict[str, list[Upcaster]]:
    found: dict[str, dict[int, Upcaster]] = {}
    for function in functions:
        name, schema = getattr(function, _UPCASTS, ("", 0))
        if name:
            found.setdefault(name, {})[schema] = function
    for name, by_schema in found.items():
        missing: Mapping[int, Any] = dict.fromkeys(range(1, max(by_schema) + 1))
        gaps = sorted(missing.keys() - by_schema.keys())
        if gaps:
            raise ConfigError(
                f"{kind.__name__}: there is upcasts({name!r}, {max(by_schema)}), but no upcasts({name!r}, {gaps[0]}): "
                "old events need each step"
            )
    return {name: [by_schema[schema] for schema in sorted(by_schema)] for name, by_schema in found.items()}
