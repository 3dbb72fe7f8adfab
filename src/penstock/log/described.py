"""A topic's settings as rows: what each is, where its value comes from and what it would be otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from penstock.log.config import TOPIC_DEFAULTS, TOPIC_SETTINGS
from penstock.log.settings import Kind, Setting


class Source(IntEnum):
    """Where a value comes from, by the number that DescribeConfigs gives it."""

    TOPIC = 1
    BROKER = 4
    DEFAULT = 5


class Origin(NamedTuple):
    """One place that gives a setting a value."""

    name: str
    value: str
    source: Source


class ConfigRow(NamedTuple):
    """A setting with its present value. `origins` lists every place that gives it one, the deciding one first."""

    name: str
    value: str | None
    kind: Kind
    documentation: str
    read_only: bool
    origins: tuple[Origin, ...]

    @property
    def source(self) -> Source:
        return self.origins[0].source if self.origins else Source.DEFAULT


def describe_topic(
    overrides: Mapping[str, str], broker_defaults: Mapping[str, str] = MappingProxyType({})
) -> list[ConfigRow]:
    """All settings of a topic in the order of their names. Both mappings have been through `TopicConfig.parse`."""
    rows = []
    for setting in TOPIC_SETTINGS.values():
        if setting.hidden:
            continue
        origins = tuple(_origins(setting, overrides, broker_defaults))
        rows.append(
            ConfigRow(
                setting.name,
                value_of(setting, overrides, broker_defaults),
                setting.kind,
                documentation(setting),
                bool(setting.fixed_because),
                origins,
            )
        )
    return rows


def documentation(setting: Setting) -> str:
    """What a setting does and takes, in a sentence or two."""
    text = f"{setting.effect[0].upper()}{setting.effect[1:]}. Use {setting.allowed}."
    return f"{text[:-1]}: {setting.fixed_because}." if setting.fixed_because else text


def value_of(setting: Setting, overrides: Mapping[str, str], broker_defaults: Mapping[str, str]) -> str:
    """The value of a topic's setting, wherever it comes from, as Kafka writes it."""
    if setting.name in overrides:
        return setting.format(setting.parse(overrides[setting.name]))
    for synonym in setting.synonyms:
        if synonym.name in broker_defaults:
            value = TOPIC_DEFAULTS[synonym.name].parse(broker_defaults[synonym.name])
            return setting.format(synonym.in_ms(value))
    return setting.format(setting.default)


def _origins(setting: Setting, overrides: Mapping[str, str], broker_defaults: Mapping[str, str]) -> Iterator[Origin]:
    if setting.name in overrides:
        yield Origin(setting.name, setting.format(setting.parse(overrides[setting.name])), Source.TOPIC)
    for synonym in setting.synonyms:
        if synonym.name in broker_defaults:
            broker_setting = TOPIC_DEFAULTS[synonym.name]
            value = broker_setting.format(broker_setting.parse(broker_defaults[synonym.name]))
            yield Origin(synonym.name, value, Source.BROKER)
    if setting.synonyms:
        last = TOPIC_DEFAULTS[setting.synonyms[-1].name]
        yield Origin(last.name, last.format(last.default), Source.DEFAULT)
