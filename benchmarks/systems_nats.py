"""NATS JetStream through Penstock, against nats-py on the same server: asynchronous publishing, and pull consumers."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks import our_rates
from benchmarks.report import Report
from tests.systems.nats_server import NatsServer, version

COUNT: Final = 30_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 1_000
BAR: Final = 0.7


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    rates: our_rates.Rates = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, NatsServer(Path(name)) as server:
        for turn in range(rounds):
            measured = asyncio.run(_by_client(server.url, f"theirs-{turn}", count))
            ours = our_rates.stream_rates(server.url, turn, count, AT_ONCE, b"x" * RECORD_BYTES)
            our_rates.note(rates, measured | ours, say)
    our_rates.add_rows(
        report,
        rates,
        ("append", "send", "read"),
        title=lambda what: f"NATS JetStream, {what}, {RECORD_BYTES} B records, one thread",
        ours="nats:// URL",
        peer="nats-py",
        theirs=f"nats-py, {AT_ONCE} in flight",
        bar=BAR,
        say=say,
    )
    report.notes.append(
        f"NATS JetStream: nats-server {version()}, sync_interval 2m, nats-py {version_of('nats-py')}; both sides send "
        "a message id with each record; append is 1,000 records in one call, send is one record in one call."
    )


async def _by_client(url: str, stream: str, count: int) -> dict[str, float]:
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name=stream, subjects=[stream])
    value = b"x" * RECORD_BYTES
    started_s = time.perf_counter()
    for first in range(0, count, AT_ONCE):
        sent = [
            await js.publish_async(stream, value, headers={"Nats-Msg-Id": str(number), "Key": str(number % AT_ONCE)})
            for number in range(first, first + AT_ONCE)
        ]
        await asyncio.gather(*sent)
    rates = {"nats-py append": count / (time.perf_counter() - started_s)}
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    consumer: Any = await js.pull_subscribe(stream, config=config)
    found = 0
    started_s = time.perf_counter()
    while found < count:
        for message in await consumer.fetch(AT_ONCE, timeout=5):
            found += message.metadata.sequence.stream > 0  # a reader needs to know where it is
    rates["nats-py read"] = count / (time.perf_counter() - started_s)
    await client.close()
    return rates
