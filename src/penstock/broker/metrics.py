"""The broker's Prometheus metrics. Each says what it is and what to do about it.

Nothing is counted twice: the numbers are read from the broker on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.wire.schema import api_name
from penstock.errors import BrokerUnavailableError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_MAX_REQUEST_BYTES: Final = 8192
_READ_TIMEOUT_S: Final = 10.0


class BrokerCollector(Collector):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        yield from self._storage()
        yield from self._groups()

    def _traffic(self) -> Iterator[Metric]:
        stats = self._broker.stats
        requests = CounterMetricFamily(
            "penstock_broker_requests", "Requests by API. A sudden jump is a client in a retry loop.", labels=["api"]
        )
        for api_key, count in sorted(stats.requests.items()):
            requests.add_metric([api_name(api_key)], count)
        yield requests
        yield CounterMetricFamily(
            "penstock_broker_produced_bytes", "Bytes of Produce requests taken in.", value=stats.produced_bytes
        )
        yield CounterMetricFamily(
            "penstock_broker_fetched_bytes", "Bytes of records sent to readers.", value=stats.fetched_bytes
        )
        yield GaugeMetricFamily(
            "penstock_broker_connections",
            "Open connections. Near max.connections: close leaking clients or raise the limit.",
            value=len(self._broker.connections),
        )
        yield CounterMetricFamily(
            "penstock_broker_refused_connections",
            "Connections closed at max.connections: idle ones that made room, or new ones. Above zero: raise it.",
            value=stats.refused_connections,
        )
        yield GaugeMetricFamily(
            "penstock_broker_receiving_bytes",
            "Memory for long requests that are being received. Near queued.max.request.bytes: clients wait to send.",
            value=self._broker.request_memory.held_bytes,
        )
        yield GaugeMetricFamily(
            "penstock_broker_sync_seconds",
            "How long putting records on the disk takes of late. Above 0.05: a slow or busy disk holds up acks=all.",
            value=self._broker.syncer.usual_s,
        )
        yield CounterMetricFamily(
            "penstock_broker_syncs",
            "Syncs of the disk. Many records per sync is good.",
            value=self._broker.syncer.syncs,
        )

    def _storage(self) -> Iterator[Metric]:
        end = GaugeMetricFamily(
            "penstock_log_end_offset", "Offset that the next record gets.", labels=["topic", "partition"]
        )
        start = GaugeMetricFamily("penstock_log_start_offset", "First readable offset.", labels=["topic", "partition"])
        size = GaugeMetricFamily(
            "penstock_log_size_bytes",
            "Bytes on disk. Plan disk and retention by it.",
            labels=["topic", "partition"],
        )
        failed = GaugeMetricFamily(
            "penstock_log_refuses_writes",
            "1 if a partition takes no writes until restart. Look at the broker's log and the disk.",
            labels=["topic", "partition"],
        )
        for log in self._broker.topics.partitions():
            labels = [log.topic, str(log.partition)]
            if log.end_offset:
                end.add_metric(labels, log.end_offset)
                start.add_metric(labels, log.log_start_offset)
                size.add_metric(labels, log.size_bytes)
            if log.failed is not None:
                failed.add_metric(labels, 1)
        yield from (end, start, size, failed)
        yield GaugeMetricFamily(
            "penstock_log_open_files", "Segment files held open.", value=len(self._broker.topics.resources.files)
        )
        yield CounterMetricFamily(
            "penstock_log_compactions", "Partitions compacted so far.", value=self._broker.stats.compactions
        )
        yield CounterMetricFamily(
            "penstock_log_segments_deleted", "Segments removed by retention.", value=self._broker.stats.segments_deleted
        )
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield CounterMetricFamily(
            "penstock_broker_cpu_seconds", "CPU time used.", value=usage.ru_utime + usage.ru_stime
        )

    def _groups(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "penstock_group_lag",
            "Records between a group's committed offset and the end. Growing: the group is too slow or dead.",
            labels=["group", "topic", "partition"],
        )
        members = GaugeMetricFamily("penstock_group_members", "Members of a group.", labels=["group"])
        for group in self._broker.groups.list():
            members.add_metric([group.group_id], len(group.members))
            for (topic, number), committed in self._broker.groups.offsets(group.group_id).items():
                log = self._broker.topics.partition(topic, number)
                if log is not None:
                    lag.add_metric([group.group_id, topic, str(number)], max(0, log.high_watermark - committed.offset))
        yield from (members, lag)


async def serve_metrics(broker: Broker, host: str, port: int, stack: contextlib.AsyncExitStack) -> str:
    """Answer `GET /metrics` on the broker's event loop. Returns the address."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, path, *_ = head.split(b" ", 2)
            if method == b"GET" and path.split(b"?")[0] in (b"/metrics", b"/"):
                _respond(writer, b"200 OK", CONTENT_TYPE_LATEST.encode(), generate_latest(registry))
            else:
                _respond(writer, b"404 Not Found", b"text/plain", b"metrics are at /metrics\n")
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, TimeoutError, ValueError):
            pass
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host, port, limit=_MAX_REQUEST_BYTES)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise BrokerUnavailableError(f"cannot serve metrics on {host}:{port}: {reason}") from error
    stack.callback(server.close)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    return f"{bound_host}:{bound_port}"


def _respond(writer: asyncio.StreamWriter, status: bytes, content_type: bytes, body: bytes) -> None:
    writer.write(
        b"HTTP/1.1 "
        + status
        + b"\r\nContent-Type: "
        + content_type
        + b"\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\nConnection: close\r\n\r\n"
        + body
    )
