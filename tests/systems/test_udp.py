"""UDP channels by `udp:` URLs, on loopback: to one address, to a multicast group, over a network with faults."""

from __future__ import annotations

import itertools
import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.abc import Channel, Feature
from penstock.channels import open_channel
from penstock.channels.udp import UdpChannel
from penstock.channels.udp.channel import RawUdpChannel
from penstock.channels.udp.packets import (
    CHALLENGE,
    DATA,
    GONE,
    HEARTBEAT,
    NO_COOKIE,
    REQUEST,
    Packet,
    PacketCodec,
    encode_records,
    encode_request,
)
from penstock.errors import BrokerUnavailableError, ConfigError, RecordTooLargeError, UrlError
from penstock.model import NewRecord, Record
from penstock.testing import UdpProxy, conformance
from penstock.testing.conformance.channels import port_to_bind
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.seeds import seed_of

pytestmark = [pytest.mark.system("UDP"), pytest.mark.xdist_group("udp")]

LOOPBACK: Final = "127.0.0.1"
GROUP: Final = "239.255.77.1"
QUICK: Final = "linger_s=0.1"
WAIT_S: Final = 30.0
_ports = itertools.count(20_000 + os.getpid() % 10_000)


@pytest.fixture(scope="module", autouse=True)
def _met() -> None:
    with closing(open_channel(f"udp://{LOOPBACK}:9")) as channel:
        system_table.met("UDP", "this machine's network, unicast and multicast", channel.features)


def open_unicast(folder: Path) -> Channel:
    return open_channel(f"udp://{LOOPBACK}:{port_to_bind(folder)}?{QUICK}&max_record_bytes=300000&history_bytes=400000")


def open_little_room(folder: Path) -> Channel:
    return open_channel(f"udp://{LOOPBACK}:{port_to_bind(folder)}?buffer=50&reorder_bytes=10000")


def open_multicast(folder: Path) -> Channel:
    secret = "0123456789abcdef"
    return open_channel(f"udp://{GROUP}:{port_to_bind(folder)}?interface={LOOPBACK}&{QUICK}&secret={secret}")


def open_raw(folder: Path) -> Channel:
    return open_channel(f"udp://{LOOPBACK}:{port_to_bind(folder)}?raw=true")


class TestUnicast(conformance.channel(open_unicast, open_unicast, limited=open_little_room, too_large_bytes=400_000)):  # type: ignore[misc]
    """Records up to 300,000 bytes are sent in parts."""


class TestMulticast(conformance.channel(open_multicast, open_multicast, large_bytes=1_000, too_large_bytes=1_400)):  # type: ignore[misc]
    """With signed packets."""


class TestRaw(
    conformance.channel(  # type: ignore[misc]
        open_raw, open_raw, large_bytes=60_000, too_large_bytes=65_508, timestamps=False
    )
):
    """Datagrams as they are: best effort."""

    test_many_records_of_one_call_arrive = None  # the system may drop some of a burst
