"""SQS, against moto: a second opinion."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.abc import Queue
from penstock.queues import open_queue
from penstock.testing import conformance
from tests import moto_server, system_table
from tests.moto_server import REGION

pytestmark = [
    pytest.mark.sampled(4, among="SQS (moto)"),
    pytest.mark.system("SQS (moto)"),
    pytest.mark.xdist_group("sqs moto"),
]

VISIBILITY_S = 2


def open_moto(folder: Path) -> Queue:
    endpoint = moto_server.shared_endpoint()
    url = f"sqs://{REGION}/{folder.name}?endpoint_url={endpoint}&create=true&request_timeout_s=4"
    queue = open_queue(url, visibility_timeout_s=VISIBILITY_S)
    system_table.met("SQS (moto)", "moto", queue.features)
    return queue


TestMoto = conformance.queue(open_moto, visibility_s=VISIBILITY_S, ordered=False)
