"""What a setting is: a name, a kind, a default, the values it takes, what it does. Topics and the broker have tables.

Names, kinds, defaults and ranges are Kafka's own. A setting that could have no effect here is *fixed*: it is known and
described, its one value may be repeated, and any other value is refused with the reason. Nothing is taken and ignored.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Final

from penstock.errors import ConfigError

Value = bool | int | float | str | tuple[str, ...] | None

INT_MAXIMUM: Final = 2**31 - 1
LONG_MAXIMUM: Final = 2**63 - 1

# Java's parsers, which Kafka's users know, take neither Python's underscores nor digits of other scripts.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Kind(IntEnum):
    """The type of a setting's value, by the number that DescribeConfigs gives it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


_NUMBER_WORDS: Final = {Kind.INT: "a whole number", Kind.LONG: "a whole number", Kind.DOUBLE: "a number"}


@dataclass(frozen=True, slots=True)
class Synonym:
    """The name under which the broker's settings hold the default of a topic's setting, and its unit there."""

    name: str
    unit_ms: int = 1

    def in_ms(self, value: Value) -> Value:
        """The broker's value as the topic's. A negative time means that there is no limit, which a topic calls -1."""
        if self.unit_ms == 1 or not isinstance(value, int):
            return value
        return value * self.unit_ms if value >= 0 else -1


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table of settings; everything that is known about it, for parsing, for clients and for the docs."""

    name: str
    kind: Kind
    default: Value
    effect: str
    minimum: float | None = None
    maximum: float | None = None
    besides: int | None = None
    """One more number that is allowed outside the range, such as the -1 that stands for "the codec's own level"."""
    choices: tuple[str, ...] = ()
    fixed_because: str = ""
    """Why no other value than the default is possible; empty for a setting that can be set."""
    synonyms: tuple[Synonym, ...] = ()
    """What the broker calls it, the most important name first."""
    hidden: bool = False
    """Whether it is left out of descriptions, as Kafka leaves out what is meant for tests."""

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def allowed(self) -> str:
        """The values it takes, in words that follow "use"."""
        if self.fixed_because:
            return f"{self.format(self.default)!r} only"
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.kind is Kind.LIST:
            return f"any of {', '.join(self.choices)}, separated by commas" if self.choices else "a list with commas"
        if self.kind is Kind.STRING:
            return f"one of {', '.join(self.choices)}" if self.choices else "text"
        words = _NUMBER_WORDS[self.kind]
        if self.minimum is not None and self.maximum is not None:
            words += f" from {self.minimum:.16g} to {self.maximum:.16g}"
        elif self.minimum is not None:
            words += f" of at least {self.minimum:.16g}"
        return f"{words}, or {self.besides}" if self.besides is not None else words

    def parse(self, text: str) -> Value:
        """The value that a text stands for; ConfigError when it stands for none that is allowed."""
        value = self._read(text.strip())
        if value is None:
            raise self.refuse(text)
        if self.fixed_because and value != self.default:
            raise ConfigError(
                f"{self.name}={text!r} is not possible: {self.fixed_because}. "
                f"Leave it out, or leave it at {self.format(self.default)!r}."
            )
        return value

    def refuse(self, text: str) -> ConfigError:
        return ConfigError(f"{self.name}={text!r} is not allowed: use {self.allowed}. It sets {self.effect}.")

    def format(self, value: Value) -> str:
        """A value as Kafka writes it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return "" if value is None else str(value)

    def _read(self, text: str) -> Value:
        """The value, or None when the text is not one of the kind, range or choice."""
        match self.kind:
            case Kind.BOOLEAN:
                return {"true": True, "false": False}.get(text.lower())
            case Kind.INT | Kind.LONG:
                limit = INT_MAXIMUM if self.kind is Kind.INT else LONG_MAXIMUM
                # Twenty characters hold every 64-bit number; longer ones are not worth the time it takes to read them.
                number = int(text) if len(text) <= 20 and _WHOLE.fullmatch(text) else None
                in_kind = number is not None and -limit - 1 <= number <= limit
                return number if in_kind and self._in_range(number) else None
            case Kind.DOUBLE:
                ratio = float(text) if _DECIMAL.fullmatch(text) else math.inf
                return ratio if math.isfinite(ratio) and self._in_range(ratio) else None
            case Kind.LIST:
                items = tuple(item.strip() for item in text.split(",")) if text else ()
                known = not self.choices or set(items) <= set(self.choices)
                return items if known and all(items) else None
            case Kind.STRING:
                return text if not self.choices or text in self.choices else None

    def _in_range(self, number: float | None) -> bool:
        if number is None:
            return False
        if number == self.besides:
            return True
        at_least = self.minimum is None or number >= self.minimum
        return at_least and (self.maximum is None or number <= self.maximum)


def obeyed(setting: Setting) -> Any:
    """A field of a dataclass of settings: it has the setting's default and carries the setting itself."""
    default = frozenset(setting.default) if isinstance(setting.default, tuple) else setting.default
    return field(default=default, metadata={"setting": setting})


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    """The settings that a dataclass obeys, by the names of its fields."""
    return {each.name: each.metadata["setting"] for each in fields(kind) if "setting" in each.metadata}


def table(settings: Iterable[Setting]) -> Mapping[str, Setting]:
    """Settings by name, in the order of their names."""
    return {setting.name: setting for setting in sorted(settings, key=lambda setting: setting.name)}


def find(name: str, settings: Mapping[str, Setting], of: str) -> Setting:
    """The setting of that name; ConfigError with the nearest names when there is none. `of` is "topic" or "broker"."""
    setting = settings.get(name)
    if setting is not None:
        return setting
    near = difflib.get_close_matches(
        name, [key for key, known in settings.items() if not known.hidden], n=3, cutoff=0.7
    )
    if near:
        raise ConfigError(f"no {of} setting is called {name!r}; did you mean {' or '.join(near)}?")
    settable = ", ".join(key for key, known in settings.items() if not known.fixed_because and not known.hidden)
    raise ConfigError(f"no {of} setting is called {name!r}; these are: {settable}")
