"""A topic's configs as rows: the value, where it comes from, and what it would be otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.log.configs.setting import Kind, Setting
from penstock.log.configs.topic_config import TOPIC_DEFAULTS, TOPIC_SETTINGS


class ConfigSource(IntEnum):
    """Where a value comes from, by its number in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    """Set on one running broker."""
    DYNAMIC_DEFAULT = 3
    """Set for all running brokers of the cluster."""
    BROKER = 4
    """Set when the broker was started."""
    DEFAULT = 5


Layers = Sequence[tuple[ConfigSource, Mapping[str, str]]]
"""Settings of the broker as text, by their source; the first layer that has a name wins."""


def merged(layers: Layers) -> dict[str, str]:
    return {name: text for _, layer in reversed(layers) for name, text in layer.items()}


class Origin(NamedTuple):
    name: str
    value: str
    source: ConfigSource


class ConfigRow(NamedTuple):
    """A setting with its effective value. `origins` lists every source that sets it, the effective one first."""

    name: str
    value: str | None
    kind: Kind
    documentation: str
    read_only: bool
    origins: tuple[Origin, ...]

    @property
    def source(self) -> ConfigSource:
        return self.origins[0].source if self.origins else ConfigSource.DEFAULT


def describe_topic(overrides: Mapping[str, str], layers: Layers = ()) -> list[ConfigRow]:
    """All configs of a topic, sorted by name. Everything passed in was checked by `TopicConfig.parse`."""
    rows = []
    broker_defaults = merged(layers)
    for setting in TOPIC_SETTINGS.values():
        if setting.hidden:
            continue
        origins = tuple(_origins(setting, overrides, layers))
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
    """What a setting does and accepts, in a sentence or two."""
    text = f"{setting.effect[0].upper()}{setting.effect[1:]}. Use {setting.allowed}."
    if setting.no_effect_because:
        return f"{text} It has no effect on penstock: {setting.no_effect_because}."
    return f"{text[:-1]}: {setting.fixed_because}." if setting.fixed_because else text


def value_of(setting: Setting, overrides: Mapping[str, str], broker_defaults: Mapping[str, str]) -> str:
    """The effective value of a topic's setting, as Kafka writes it."""
    if setting.name in overrides:
        return setting.format(setting.parse(overrides[setting.name]))
    for synonym in setting.synonyms:
        if synonym.name in broker_defaults:
            value = TOPIC_DEFAULTS[synonym.name].parse(broker_defaults[synonym.name])
            return setting.format(synonym.in_ms(value))
    return setting.format(setting.default)


def _origins(setting: Setting, overrides: Mapping[str, str], layers: Layers) -> Iterator[Origin]:
    if setting.name in overrides:
        yield Origin(setting.name, setting.format(setting.parse(overrides[setting.name])), ConfigSource.TOPIC)
    for source, layer in layers:
        for synonym in setting.synonyms:
            if synonym.name in layer:
                broker_setting = TOPIC_DEFAULTS[synonym.name]
                value = broker_setting.format(broker_setting.parse(layer[synonym.name]))
                yield Origin(synonym.name, value, source)
    if setting.synonyms:
        last = TOPIC_DEFAULTS[setting.synonyms[-1].name]
        yield Origin(last.name, last.format(last.default), ConfigSource.DEFAULT)
