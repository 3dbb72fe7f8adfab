"""The type of a setting: name, kind, default, allowed values and effect. Topics and the broker have tables of them.

Names, kinds, defaults and ranges are Kafka's. A setting without effect on one node is accepted, because tools that copy
topics between clusters send it: its values are checked, stored and shown, and its documentation says that it has no
effect, and why. A *fixed* setting refuses any other value, with the reason, because it would promise something that
cannot be kept.
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

# Java's parsers, which Kafka's users know, accept neither Python's underscores nor digits of other scripts.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Kind(IntEnum):
    """The type of a setting's value, by its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


_NUMBER_WORDS: Final = {Kind.INT: "a whole number", Kind.LONG: "a whole number", Kind.DOUBLE: "a number"}


@dataclass(frozen=True, slots=True)
class Synonym:
    """The broker setting that holds the default of a topic's setting, and its unit there."""

    name: str
    unit_ms: int = 1

    def in_ms(self, value: Value) -> Value:
        """The broker's value as a topic's. A negative time means no limit, which is -1 for topics."""
        if self.unit_ms == 1 or not isinstance(value, int):
            return value
        return value * self.unit_ms if value >= 0 else -1


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, with everything needed for parsing, for clients and for the docs."""

    name: str
    kind: Kind
    default: Value
    effect: str
    minimum: float | None = None
    maximum: float | None = None
    besides: int | None = None
    """One more allowed number outside the range, such as -1 for "the codec's own level"."""
    choices: tuple[str, ...] = ()
    matching: str = ""
    """A regular expression for the whole text of a STRING or LIST."""
    fixed_because: str = ""
    """Why only the default is possible; empty for a setting that can be changed."""
    no_effect_because: str = ""
    """Why the value makes no difference here; empty for a setting that has an effect."""
    dynamic: bool = False
    """Whether Kafka allows changing it on a running broker. Only for broker settings; those of topics always are
    dynamic."""
    synonyms: tuple[Synonym, ...] = ()
    """The broker's names for it, the most important first."""
    hidden: bool = False
    """Whether it is left out of descriptions, as Kafka does with settings for tests."""

    @property
    def obeyed(self) -> bool:
        return not self.fixed_because and not self.no_effect_because

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def allowed(self) -> str:
        """The allowed values, in words that follow "use"."""
        if self.fixed_because:
            return f"{self.format(self.default)!r} only"
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.matching:
            return f"a text that matches {self.matching}"
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
        """The value of this setting in a text. ConfigError if it is not allowed."""
        value = self._read(text.strip())
        if value is None:
            raise self.refuse(text)
        if self.fixed_because and value != self.default:
            raise ConfigError(
                f"{self.name}={text!r} is not possible: {self.fixed_because}. "
                f"Omit it, or use {self.format(self.default)!r}."
            )
        return value

    def refuse(self, text: str) -> ConfigError:
        return ConfigError(f"{self.name}={text!r} is not allowed: use {self.allowed}. It sets {self.effect}.")

    def format(self, value: Value) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return "" if value is None else str(value)

    def _read(self, text: str) -> Value:
        """The value, or None if the text does not fit the kind, range or choices."""
        match self.kind:
            case Kind.BOOLEAN:
                return {"true": True, "false": False}.get(text.lower())
            case Kind.INT | Kind.LONG:
                limit = INT_MAXIMUM if self.kind is Kind.INT else LONG_MAXIMUM
                # Twenty characters hold every 64-bit number; longer ones are not worth parsing.
                number = int(text) if len(text) <= 20 and _WHOLE.fullmatch(text) else None
                in_kind = number is not None and -limit - 1 <= number <= limit
                return number if in_kind and self._in_range(number) else None
            case Kind.DOUBLE:
                ratio = float(text) if _DECIMAL.fullmatch(text) else math.inf
                return ratio if math.isfinite(ratio) and self._in_range(ratio) else None
            case Kind.LIST:
                items = tuple(item.strip() for item in text.split(",")) if text else ()
                known = not self.choices or set(items) <= set(self.choices)
                return items if known and all(items) and self._matches(",".join(items)) else None
            case Kind.STRING:
                return text if (not self.choices or text in self.choices) and self._matches(text) else None

    def _matches(self, text: str) -> bool:
        return not self.matching or re.fullmatch(self.matching, text) is not None

    def _in_range(self, number: float | None) -> bool:
        if number is None:
            return False
        if number == self.besides:
            return True
        at_least = self.minimum is None or number >= self.minimum
        return at_least and (self.maximum is None or number <= self.maximum)


def setting_field(name: str, kind: Kind, default: Value, effect: str, **more: Any) -> Any:
    """A field of a dataclass of settings, with its Setting as metadata."""
    setting = Setting(name, kind, default, effect, **more)
    return field(default=frozenset(default) if isinstance(default, tuple) else default, metadata={"setting": setting})


def whole_number(
    name: str, default: int | None, effect: str, *, kind: Kind = Kind.INT, minimum: int | None = 1, **more: Any
) -> Any:
    """A field for a whole number, by default an INT of at least 1."""
    return setting_field(name, kind, default, effect, minimum=minimum, **more)


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    return {each.name: each.metadata["setting"] for each in fields(kind) if "setting" in each.metadata}


def table(settings: Iterable[Setting]) -> Mapping[str, Setting]:
    return {setting.name: setting for setting in sorted(settings, key=lambda setting: setting.name)}


def find(name: str, settings: Mapping[str, Setting], of: str) -> Setting:
    """The setting of that name. Raises ConfigError with the nearest names. `of` is "topic" or "broker"."""
    setting = settings.get(name)
    if setting is not None:
        return setting
    near = difflib.get_close_matches(
        name, [key for key, known in settings.items() if not known.hidden], n=3, cutoff=0.7
    )
    if near:
        raise ConfigError(f"no {of} setting is called {name!r}; did you mean {' or '.join(near)}?")
    settable = ", ".join(key for key, known in settings.items() if known.obeyed and not known.hidden)
    raise ConfigError(f"no {of} setting is called {name!r}; these are: {settable}")
