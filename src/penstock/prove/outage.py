"""An outage: several producers send, the broker is killed and restarted meanwhile, and everything is read back."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import DeliveryError, PenstockError
from penstock.prove.broker_process import BrokerProcess, Recovery, folder_bytes
from penstock.prove.tally import Tally, Verdict
from penstock.streams import Connection, connect

TOPIC: Final = "outage"
GROUP: Final = "outage"
SMALL_BUFFER: Final = {"queue.buffering.max.messages": 2_000}
"""Small, so that an outage stops the producers, instead of finding everything buffered already."""
_LOOK_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is done, all of it determined by the seed."""

    records: int = 300_000
    producers: int = 4
    partitions: int = 4
    keys: int = 100
    """Keys of each producer."""
    kills: int = 2
    seed: int = 1

    def kill_points(self) -> list[int]:
        """After how many acknowledged records the broker is killed, each time."""
        chance = random.Random(self.seed)
        share = 0.8 / max(1, self.kills)
        return [round(self.records * (0.1 + share * (number + chance.random()))) for number in range(self.kills)]


@dataclass(slots=True)
class Outcome:
    verdict: Verdict
    recoveries: list[Recovery]
    outages_s: list[float]
    """From each kill until the broker listened again."""
    produce_s: float
    consume_s: float
    stored_bytes: int


class Watcher(Protocol):
    """Receives progress. All methods are called from the thread that runs the outage."""

    def started(self, broker: BrokerProcess, first_start: Recovery) -> None: ...
    def sending(self, tally: Tally) -> None: ...
    def killed(self, broker: BrokerProcess, tally: Tally) -> None: ...
    def recovered(self, broker: BrokerProcess, recovery: Recovery) -> None: ...
    def sent(self, tally: Tally, seconds: float) -> None: ...
    def reading(self, tally: Tally) -> None: ...


@dataclass(slots=True)
class Sending:
    url: str
    plan: Plan
    tally: Tally
    stopping: threading.Event = field(default_factory=threading.Event)
    connections: list[Connection] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    errors: list[PenstockError] = field(default_factory=list)

    def start(self) -> None:
        for producer in range(self.plan.producers):
            self.connections.append(connect(self.url, client_id=f"producer-{producer}", librdkafka=SMALL_BUFFER))
            thread = threading.Thread(target=self._send, args=(producer,), name=f"producer-{producer}", daemon=True)
            self.threads.append(thread)
        for thread in self.threads:
            thread.start()

    @property
    def under_way(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)

    def _send(self, producer: int) -> None:
        connection, tally = self.connections[producer], self.tally
        share = self.plan.records // self.plan.producers + (producer < self.plan.records % self.plan.producers)
        try:
            for _ in range(share):
                if self.stopping.is_set():
                    return
                number, key, value = tally.next_record(producer)
                receipt = connection.send(TOPIC, value, key)
                receipt.add_done_callback(_acknowledger(tally, producer, number))
            connection.flush()
        except PenstockError as error:
            self.errors.append(error)

    def close(self) -> None:
        """Close everything, without waiting for acknowledgements."""
        self.stopping.set()
        for connection in self.connections:
            with contextlib.suppress(DeliveryError):  # reported by `errors`, or abandoned on purpose
                connection.close(timeout_s=0)
        for thread in self.threads:
            thread.join()


def _acknowledger(tally: Tally, producer: int, number: int) -> Callable[[object], None]:
    def acknowledged(receipt: object) -> None:
        if getattr(receipt, "error", None) is None:
            tally.acknowledge(producer, number)

    return acknowledged


def run(plan: Plan, folder: Path, watcher: Watcher) -> Outcome:
    """Run it in an empty folder. The broker and the producers are gone when this returns or raises."""
    tally = Tally(plan.producers, plan.keys)
    data = folder / "data"
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(data, folder / "broker.log"))
        watcher.started(broker, broker.start())
        with connect(broker.url) as stream:
            stream.create_topic(TOPIC, plan.partitions)
        sending = Sending(broker.url, plan, tally)
        stack.callback(sending.close)
        started_s = time.monotonic()
        sending.start()
        recoveries, outages_s = _kill_and_restart(plan, broker, sending, watcher)
        produce_s = time.monotonic() - started_s
        if sending.errors:
            raise sending.errors[0]
        watcher.sent(tally, produce_s)
        started_s = time.monotonic()
        _read_everything(broker, tally, watcher)
        consume_s = time.monotonic() - started_s
        return Outcome(tally.verdict(), recoveries, outages_s, produce_s, consume_s, folder_bytes(data))


def _kill_and_restart(
    plan: Plan, broker: BrokerProcess, sending: Sending, watcher: Watcher
) -> tuple[list[Recovery], list[float]]:
    """Until all is sent: kill the broker at each kill point, and restart it at once."""
    points = plan.kill_points()
    recoveries: list[Recovery] = []
    outages_s: list[float] = []
    while sending.under_way:
        watcher.sending(sending.tally)
        if points and sending.tally.acknowledged >= points[0]:
            points.pop(0)
            killed_s = time.monotonic()
            broker.kill()
            watcher.killed(broker, sending.tally)
            recoveries.append(broker.start())
            outages_s.append(time.monotonic() - killed_s)
            watcher.recovered(broker, recoveries[-1])
        time.sleep(_LOOK_AGAIN_S)
    return recoveries, outages_s


def _read_everything(broker: BrokerProcess, tally: Tally, watcher: Watcher) -> None:
    with (
        connect(broker.url) as stream,
        stream.read_as_member(GROUP, TOPIC) as reader,
    ):
        for record in reader:
            tally.see(record.partition, record.offset, record.value)
            if not reader.ready:
                watcher.reading(tally)
        watcher.reading(tally)
