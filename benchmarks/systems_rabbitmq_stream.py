"""RabbitMQ streams through Penstock, against rstream on the same server: publishing with confirms, and reading."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

import rstream

from benchmarks import our_rates
from benchmarks.report import Report
from tests.systems.rabbitmq_server import RabbitMq

COUNT: Final = 60_000
RECORD_BYTES: Final = 100
AT_ONCE: Final = 1_000
BAR: Final = 0.7


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    count = max(AT_ONCE, round(COUNT * scale) // AT_ONCE * AT_ONCE)
    rates: our_rates.Rates = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, RabbitMq(Path(name), 4) as server:
        for turn in range(rounds):
            measured = asyncio.run(_by_client(server, f"theirs-{turn}", count))
            ours = our_rates.stream_rates(
                f"rabbitmq-stream://127.0.0.1:{server.stream_port}", turn, count, AT_ONCE, b"x" * RECORD_BYTES
            )
            our_rates.note(rates, measured | ours, say)
        version = server.version
    our_rates.add_rows(
        report,
        rates,
        ("append", "send", "read"),
        title=lambda what: f"RabbitMQ streams, {what}, {RECORD_BYTES} B records, one thread",
        ours="rabbitmq-stream:// URL",
        peer="rstream",
        theirs="rstream",
        bar=BAR,
        say=say,
    )
    report.notes.append(
        f"RabbitMQ streams: RabbitMQ {version}, one node, rstream {version_of('rstream')}; AMQP 1.0 messages with a "
        "key, by a publisher with a name, confirmed; ours also finds out the offset of each. append is 1,000 records "
        "in one call, send is one record in one call; rstream sends batches of 1,000."
    )


async def _by_client(server: RabbitMq, stream: str, count: int) -> dict[str, float]:
    value = b"x" * RECORD_BYTES
    login: dict[str, Any] = {"username": "guest", "password": "guest"}
    async with rstream.Producer("127.0.0.1", server.stream_port, **login) as producer:
        await producer.create_stream(stream)
        confirmed = 0
        all_confirmed = asyncio.Event()

        def confirm(status: Any) -> None:
            nonlocal confirmed
            confirmed += status.is_confirmed
            if confirmed == count:
                all_confirmed.set()

        started_s = time.perf_counter()
        for _ in range(0, count, AT_ONCE):
            batch = [
                rstream.AMQPMessage(body=value, application_properties={"key": str(number)})
                for number in range(AT_ONCE)
            ]
            await producer.send_batch(stream, batch, publisher_name="theirs", on_publish_confirm=confirm)
        await asyncio.wait_for(all_confirmed.wait(), 120)
        rates = {"rstream append": count / (time.perf_counter() - started_s)}
    consumer = rstream.Consumer("127.0.0.1", server.stream_port, **login)
    await consumer.start()
    found = 0

    async def take(message: Any, context: Any) -> None:
        nonlocal found
        found += context.offset >= 0  # a reader needs to know where it is
        if found == count:
            consumer.stop()

    first = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST)
    started_s = time.perf_counter()
    await consumer.subscribe(stream, take, decoder=rstream.amqp_decoder, offset_specification=first, initial_credit=100)
    await asyncio.wait_for(consumer.run(), 120)
    rates["rstream read"] = count / (time.perf_counter() - started_s)
    await consumer.close()
    return rates
