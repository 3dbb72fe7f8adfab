"""Broker settings that were changed while it ran (IncrementalAlterConfigs on a broker), kept over restarts.

There are two layers above what the broker was started with: one for all brokers of the cluster, whose name is empty,
and one for a broker by its id. Kafka calls them the dynamic default config and the dynamic broker config; the second
one wins. Both layers have been checked, and take effect when they are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.broker.settings import BROKER_SETTINGS, BrokerSettings
from penstock.errors import ConfigError, StorageError
from penstock.log.configs.described import ConfigSource, Layers, merged
from penstock.log.configs.setting import find
from penstock.log.disk import Disk
from penstock.log.statefile import read_state, write_state

DYNAMIC_CONFIGS_FILE: Final = "broker-configs"
CLUSTER: Final = ""
"""The name of the layer for all brokers."""


class _Stored(msgspec.Struct, frozen=True):
    version: int
    layers: dict[str, dict[str, str]]


class DynamicConfigs:
    def __init__(self, folder: Path, disk: Disk, node_id: int, given: Mapping[str, str]) -> None:
        """`given` is what the broker was started with. Raises ConfigError if it conflicts with what is stored."""
        self._path = folder / DYNAMIC_CONFIGS_FILE
        self._disk = disk
        self._own = str(node_id)
        self._given = given
        content = read_state(self._path)
        self._stored = msgspec.json.decode(content, type=_Stored).layers if content is not None else {}
        try:
            BrokerSettings.parse(self.effective())
        except ConfigError as error:
            raise ConfigError(
                f"a setting that was changed while the broker ran, kept in {self._path}, conflicts with those given "
                f"now: {error} Use others, or move that file away to start without such changes."
            ) from error

    def layers(self) -> Layers:
        return self._layers(self._stored)

    def effective(self) -> dict[str, str]:
        return merged(self.layers())

    def layer(self, name: str) -> Mapping[str, str]:
        """What is set for all brokers (the empty name), or for one."""
        return self._stored.get(name, {})

    def preview(self, name: str, overrides: Mapping[str, str]) -> dict[str, str]:
        """What `effective` would be with this layer. Raises ConfigError if it is not allowed."""
        for each, text in overrides.items():
            setting = find(each, BROKER_SETTINGS, "broker")
            setting.parse(text)
            if not setting.dynamic:
                raise ConfigError(
                    f"{each} cannot be changed while the broker runs: "
                    f"start it with penstock serve --config {each}=VALUE"
                )
        effective = merged(self._layers({**self._stored, name: dict(overrides)}))
        BrokerSettings.parse(effective)
        return effective

    def store(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace the layer of this name; durable when this returns."""
        stored = {**self._stored, name: dict(overrides)}
        try:
            write_state(self._path, msgspec.json.encode(_Stored(1, stored)), self._disk)
        except OSError as error:
            raise StorageError(f"the broker's settings could not be stored: {error.strerror}") from error
        self._stored = stored

    def _layers(self, stored: Mapping[str, Mapping[str, str]]) -> Layers:
        return (
            (ConfigSource.DYNAMIC_BROKER, stored.get(self._own, {})),
            (ConfigSource.DYNAMIC_DEFAULT, stored.get(CLUSTER, {})),
            (ConfigSource.BROKER, self._given),
        )
