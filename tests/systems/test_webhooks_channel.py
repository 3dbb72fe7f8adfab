"""Webhooks to registered receivers pass the suite of channels, with a receiver that is an `http:` channel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from penstock.abc import Feature, Features
from penstock.channels import open_channel
from penstock.channels.http.channel import HttpChannel
from penstock.channels.webhooks.channel import WebhooksChannel
from penstock.model import Record
from penstock.testing import conformance
from penstock.testing.conformance.channels import port_to_bind, port_to_connect

pytestmark = [pytest.mark.system("HTTP"), pytest.mark.xdist_group("webhooks")]

FEATURES: Final[Features] = frozenset({Feature.KEYS, Feature.HEADERS})
"""Without ANSWERS: `send` returns when the records are on disk, and whatever the receiver answers comes later."""


class Receiving:
    """A receiver that accepts everything."""

    def __init__(self, folder: Path) -> None:
        channel = open_channel(f"http://127.0.0.1:{port_to_bind(folder)}/hooks")
        assert isinstance(channel, HttpChannel)
        self._channel = channel

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        records = self._channel.listen(limit, wait_s)
        self._channel.acknowledge(records)
        return records

    def close(self) -> None:
        self._channel.close()


def open_webhooks(folder: Path) -> WebhooksChannel:
    channel = open_channel(
        f"webhooks:{folder / 'webhooks.db'}?allow_http=true&private_addresses=true&verify=false"
        "&first_delay_s=0.02&max_delay_s=0.2&timeout_s=3"
    )
    assert isinstance(channel, WebhooksChannel)
    if not channel.registry.receivers():
        channel.registry.register(f"http://127.0.0.1:{port_to_connect(folder)}/hooks")
    return channel


class TestWebhooks(
    conformance.channel(  # type: ignore[misc]
        Receiving,
        open_webhooks,
        FEATURES,
        ordered=False,  # only records with the same key keep their order
        network=True,
    )
):
    pass
