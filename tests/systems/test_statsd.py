"""StatsD channels by `statsd:` URLs: metrics of the public client, of raw packets and of our own sender."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import socket
import string
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import statsd
from hypothesis import given
from hypothesis import strategies as st

from penstock.abc import Channel, Feature
from penstock.channels import open_channel
from penstock.channels.statsd import StatsdChannel
from penstock.channels.statsd.aggregates import Aggregates, statistics_of
from penstock.channels.statsd.lines import BadLineError, Metric, format_line, parse_line
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, RecordTooLargeError, UrlError
from penstock.gateway import Gateway
from penstock.model import NewRecord, Record
from penstock.streams import connect
from penstock.testing import conformance
from penstock.testing.conformance.channels import port_to_bind, port_to_connect
from tests import system_table
from tests.consuming.eventually import wait_until
from tests.seeds import seed_of

pytestmark = [pytest.mark.system("StatsD"), pytest.mark.xdist_group("statsd")]

LOOPBACK: Final = "127.0.0.1"
WAIT_S: Final = 30.0


def open_udp(folder: Path) -> Channel:
    return open_channel(f"statsd://{LOOPBACK}:{port_to_bind(folder)}")


def listen_tcp(folder: Path) -> Channel:
    return open_channel(f"statsd://{LOOPBACK}:{port_to_bind(folder)}?transport=tcp")


def send_tcp(folder: Path) -> Channel:
    return open_channel(f"statsd://{LOOPBACK}:{port_to_connect(folder)}?transport=tcp&connect_timeout_s=2")


def as_metric(mark: bytes, number: int) -> NewRecord:
    return NewRecord("channel", b"%b:%d|c" % (mark, number), mark)


def number_of(mark: bytes, record: Record) -> int | None:
    return json.loads(record.value or b"{}").get("value") if record.key == mark else None


OF_METRICS: Final[dict[str, Any]] = {"timestamps": False, "message": as_metric, "number_of": number_of}


class TestUdp(conformance.channel(open_udp, open_udp, **OF_METRICS)):  # type: ignore[misc]
    """By UDP."""


class TestTcp(conformance.channel(listen_tcp, send_tcp, network=True, **OF_METRICS)):  # type: ignore[misc]
    """By TCP."""
