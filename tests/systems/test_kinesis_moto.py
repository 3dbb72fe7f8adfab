"""Kinesis, against moto: a second opinion, by default settings, with one record of a partition in a request."""

from __future__ import annotations

import importlib.metadata

import pytest

import penstock
from penstock.testing import conformance
from tests import moto_server, system_table
from tests.moto_server import REGION
from tests.systems.aws_faults import expire

pytestmark = [
    pytest.mark.sampled(4, among="Kinesis (moto)"),
    pytest.mark.system("Kinesis (moto)"),
    pytest.mark.xdist_group("kinesis moto"),
]


def open_moto() -> penstock.Connection:
    endpoint = moto_server.shared_endpoint()
    stream = penstock.connect(f"kinesis://{REGION}?endpoint_url={endpoint}&read_interval_s=0.01")
    system_table.met("Kinesis (moto)", f"moto {importlib.metadata.version('moto')}", stream.features)
    return stream


class TestMoto(conformance.stream(open_moto, expire=expire)):  # type: ignore[misc]
    test_one_append_takes_many_records = None
    """It would take 5000 requests."""
