"""SQS, against moto: a second opinion."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from penstock.abc import Queue
from penstock.queues import open_queue
from tests import moto_server, system_table
from tests.moto_server import REGION
from tests.systems.expiring import other_cases, waiting_cases

pytestmark = [
    pytest.mark.sampled(4, among="SQS (moto)"),
    pytest.mark.system("SQS (moto)"),
    pytest.mark.xdist_group("sqs moto"),
]


def open_moto(visibility_s: int, folder: Path) -> Queue:
    endpoint = moto_server.shared_endpoint()
    url = f"sqs://{REGION}/{folder.name}?endpoint_url={endpoint}&create=true&request_timeout_s=4"
    queue = open_queue(url, visibility_timeout_s=visibility_s)
    system_table.met("SQS (moto)", f"moto {importlib.metadata.version('moto')}", queue.features)
    return queue


TestMoto = other_cases(open_moto, ordered=False)
TestMotoExpiring = waiting_cases(open_moto, ordered=False)
