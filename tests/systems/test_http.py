"""Webhooks by `http:` and `https:` URLs: real requests over loopback, honest and lying clients, dead receivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.channels import open_channel
from penstock.channels.http.channel import HttpChannel
from penstock.testing import conformance
from penstock.testing.conformance.channels import port_to_bind, port_to_connect

pytestmark = [pytest.mark.system("HTTP"), pytest.mark.xdist_group("http")]

ANSWER_S = 3.0


def open_listener(folder: Path) -> HttpChannel:
    channel = open_channel(f"http://127.0.0.1:{port_to_bind(folder)}/hooks?answer_timeout_s=20")
    assert isinstance(channel, HttpChannel)
    return channel


def open_limited(folder: Path) -> HttpChannel:
    channel = open_channel(f"http://127.0.0.1:{port_to_bind(folder)}/hooks?buffer=10")
    assert isinstance(channel, HttpChannel)
    return channel


def open_sender(folder: Path) -> HttpChannel:
    """One attempt: the suite wants to hear of each failure, and answers each record once."""
    channel = open_channel(
        f"http://127.0.0.1:{port_to_connect(folder)}/hooks?attempts=1&timeout_s={ANSWER_S}&breaker_after=0"
    )
    assert isinstance(channel, HttpChannel)
    return channel


class TestHttpChannel(
    conformance.channel(  # type: ignore[misc]
        open_listener,
        open_sender,
        limited=open_limited,
        ordered=False,  # only records with the same key keep their order: see the tests below
        network=True,
        too_large_bytes=1_000_001,
        answer_s=ANSWER_S,
    )
):
    pass
