"""What every drill uses: topics, a producer whose records are counted, waiting with a bound, and the outcome.

A drill numbers its records. What was acknowledged is known from the delivery reports, what is there from reading the
topic to its end afterwards: acknowledged and not there is lost, there twice is repeated.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster.brokers import POLL_S, Cluster
from penstock.cluster.requests import Partition, Quorum, describe_partitions, describe_quorum, reassign
from penstock.cluster.status import ask
from penstock.errors import ClusterError
from penstock.java.downloads import Tell

WAIT_S: Final = 90.0
WHOLE_POLL_S: Final = 0.25
"""Asking for all partitions takes a broker that is starting a while."""
ASK_TIMEOUT_S: Final = 2.0
READ_TIMEOUT_S: Final = 60.0
RATE: Final = 400
"""How many records a producer sends a second."""
CLIENT: Final[Mapping[str, Any]] = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": 5000,
}


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the records of one producer."""

    case: str
    sent: int
    acknowledged: int
    refused: int
    """Records whose delivery failed for good."""
    lost: int
    """Records that were acknowledged and are not there."""
    repeated: int
    longest_wait_s: float
    """The longest time between two acknowledgements."""


@dataclass(slots=True)
class Outcome:
    """What a drill found out."""

    why: str
    """Two sentences."""
    tallies: list[Tally] = field(default_factory=list)
    findings: list[tuple[str, str]] = field(default_factory=list)
    claims: dict[str, bool] = field(default_factory=dict)
    """What the drill shows, and whether it held."""

    @property
    def holds(self) -> bool:
        return all(self.claims.values())


class Stage:
    """A cluster on which one drill runs."""

    def __init__(self, cluster: Cluster, seed: int, tell: Tell) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.tell = tell
        self.findings: list[tuple[str, str]] = []
        self._came_back_s: dict[int, float] = {}
        self._topics: list[str] = []
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **CLIENT})
        self._prefix = f"drill-{int(time.time() * 1000):x}"

    def close(self) -> None:
        """Bring every broker back, and delete the drill's topics."""
        self.make_whole()
        there = [name for name in self._topics if self.partitions(name)]
        for name, future in self._admin.delete_topics(there).items() if there else ():
            try:
                future.result(timeout=ASK_TIMEOUT_S * 5)
            except KafkaException as error:
                self.tell(f"{name} was not deleted: {error}")

    def make_whole(self, timeout_s: float = WAIT_S) -> None:
        """Resume, heal and start all brokers, and wait until every replica is in sync."""
        self.cluster.refresh()
        for number in self.cluster.numbers:
            broker = self.cluster.broker(number)
            if broker.isolated_from is not None or broker.is_paused:  # also by a drill that was killed
                self.cluster.heal(number)
                self._came_back_s[number] = time.monotonic()
        self.wait("every broker serves and every replica is in sync", self._is_whole_again, timeout_s, WHOLE_POLL_S)

    def _is_whole_again(self) -> bool:
        """Start what does not run; one that was told to stop when the drill was interrupted ends only later."""
        self.cluster.refresh()
        for number in self.cluster.numbers:
            if not self.cluster.is_running(number):
                self.cluster.start(number, wait=False)
                self._came_back_s[number] = time.monotonic()
        return all(map(self.cluster.serves, self.cluster.numbers)) and self.is_whole()

    def is_whole(self) -> bool:
        found = self._ask_partitions(None)
        return found is not None and all(not each.out_of_sync and each.leader is not None for each in found)

    def topic(self, name: str, placement: Sequence[Sequence[int]] | None = None, **settings: str) -> str:
        """Create a topic whose partitions have these replicas, the preferred leader first. Returns its full name."""
        return self._create(
            name, {"replica_assignment": [list(each) for each in placement or [self.cluster.numbers]]}, settings
        )

    def placed_topic(self, name: str, partitions: int, replicas: int, **settings: str) -> str:
        """Create a topic whose replicas the controller places."""
        return self._create(name, {"num_partitions": partitions, "replication_factor": replicas}, settings)

    def name_of(self, name: str) -> str:
        """The full name of a topic that the drill creates; it is deleted in the end, if it exists."""
        full = f"{self._prefix}-{name}"
        self._topics.append(full)
        return full

    def _create(self, name: str, how: Mapping[str, Any], settings: Mapping[str, str]) -> str:
        full = self.name_of(name)
        config = {key.replace("_", "."): value for key, value in settings.items()}
        if "replica_assignment" in how:
            how = {**how, "num_partitions": len(how["replica_assignment"])}
        self._admin.create_topics([NewTopic(full, config=config, **how)])[full].result(timeout=30)
        self.wait(f"{full} has leaders", lambda: bool(self.partitions(full)) and None not in self.leaders(full))
        return full

    def partitions(self, topic: str) -> list[Partition]:
        """The partitions as a broker that is neither paused nor isolated sees them; empty if none answers."""
        return self._ask_partitions([topic]) or []

    def partition(self, topic: str) -> Partition:
        """The only partition of a topic."""
        self.wait(f"a broker answers for {topic}", lambda: bool(self.partitions(topic)))
        return self.partitions(topic)[0]

    def leaders(self, topic: str) -> list[int | None]:
        return [each.leader for each in self.partitions(topic)]

    def is_led_without(self, topic: str, former: int) -> bool:
        """Whether every partition of a topic is led by another broker than this one."""
        leaders = self.leaders(topic)
        return bool(leaders) and former not in leaders and None not in leaders

    def is_in_sync(self, topic: str, number: int) -> bool:
        """Whether a broker's replica of the only partition is in sync."""
        return number in self.partition(topic).in_sync

    def shuffled_brokers(self) -> list[int]:
        """The numbers of the brokers, in an order that the seed determines."""
        numbers = list(self.cluster.numbers)
        self.random.shuffle(numbers)
        return numbers

    def _ask_partitions(self, topics: Sequence[str] | None) -> list[Partition] | None:
        return ask(
            self.cluster,
            lambda broker: describe_partitions(broker.host, broker.port, topics, ASK_TIMEOUT_S) or None,
            self._up_to_date(),
        ) or ([] if topics is None else None)

    def quorum(self) -> Quorum | None:
        """The controllers, as a broker that is not paused knows them."""
        return ask(
            self.cluster,
            lambda broker: describe_quorum(broker.host, broker.controller_port, ASK_TIMEOUT_S),
            self._up_to_date(),
        )

    def _up_to_date(self) -> list[int]:
        """The brokers that do not hang. One that has just come back is asked last: it answers what it knew before."""
        numbers = [number for number in self.cluster.numbers if not self.cluster.broker(number).is_paused]
        return sorted(numbers, key=lambda number: self._came_back_s.get(number, 0.0))

    def wait(
        self, what: str, condition: Callable[[], bool], timeout_s: float = WAIT_S, poll_s: float = POLL_S
    ) -> float:
        """Wait until a condition holds, and return the seconds it took. Raises ClusterError if it does not."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > timeout_s:
                raise ClusterError(
                    f"the drill waited {timeout_s:.0f} s in vain until {what}: see `penstock cluster status`"
                )
            time.sleep(poll_s)
        return time.monotonic() - began_s

    def timed(self, what: str, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> float:
        """Wait as `wait` does, and add the time to the findings."""
        took_s = self.wait(what, condition, timeout_s)
        self.found(what, f"{took_s:.1f} s")
        return took_s

    def found(self, what: str, value: object) -> None:
        """Add a finding to the outcome."""
        self.findings.append((what, str(value)))
        self.tell(f"{what}: {value}")

    def kill(self, number: int) -> None:
        self.tell(f"kill -9 broker {number}")
        self.cluster.kill(number)

    def start(self, number: int) -> None:
        self.tell(f"broker {number} starts")
        began_s = time.monotonic()
        self.cluster.start(number)
        self._came_back_s[number] = time.monotonic()
        self.found(f"broker {number} serves again", f"{time.monotonic() - began_s:.1f} s")

    def pause(self, number: int) -> None:
        self.tell(f"broker {number} hangs (SIGSTOP)")
        self.cluster.pause(number)

    def resume(self, number: int) -> None:
        self.tell(f"broker {number} goes on (SIGCONT)")
        self.cluster.resume(number)
        self._came_back_s[number] = time.monotonic()

    def has_preferred_leaders(self, topic: str) -> bool:
        """Whether the first replica of each partition leads it; ask the controller to elect it if not."""
        found = self.partitions(topic)
        if any(each.leader != each.replicas[0] for each in found):
            parts = [TopicPartition(topic, each.number) for each in found]
            try:
                self._admin.elect_leaders(ElectionType.PREFERRED, parts).result(timeout=30)
            except KafkaException as error:  # refused, or lost with the controller: the next call asks again
                self.tell(f"the preferred leaders of {topic} were not elected: {error}")
            found = self.partitions(topic)
        return bool(found) and all(each.leader == each.replicas[0] for each in found)

    def move_leader(self, topic: str, number: int) -> None:
        """Make a replica of the only partition its preferred leader, and elect it."""
        replicas = self.partition(topic).replicas
        broker = self.cluster.broker(number)
        others = [each for each in replicas if each != number]
        reassign(broker.host, broker.port, topic, {0: [number, *others]})
        self.wait(f"broker {number} is the preferred leader", lambda: self.partition(topic).replicas[0] == number)
        self.wait(f"broker {number} leads {topic}", lambda: self.has_preferred_leaders(topic))

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": self._prefix,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": False,
                **CLIENT,
                **settings,
            }
        )

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The high watermark of each partition: the offset up to which consumers may read."""
        consumer = self.consumer()
        try:
            return {
                each.number: consumer.get_watermark_offsets(TopicPartition(topic, each.number), timeout=10)[1]
                for each in self.partitions(topic)
            }
        finally:
            consumer.close()

    def read(self, topic: str) -> list[Message]:
        """Everything that a consumer may see now, from the beginning."""
        ends = {number: end for number, end in self.end_offsets(topic).items() if end > 0}
        consumer = self.consumer()
        found: list[Message] = []
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in ends])
            deadline_s = time.monotonic() + READ_TIMEOUT_S
            left = dict(ends)
            while left:
                found += [message for message in consumer.consume(1000, timeout=0.2) if message.error() is None]
                for position in consumer.position([TopicPartition(topic, number) for number in left]):
                    if position.offset >= left[position.partition]:
                        del left[position.partition]
                if time.monotonic() > deadline_s:
                    raise ClusterError(f"{topic} could not be read to its end within {READ_TIMEOUT_S:.0f} s")
        finally:
            consumer.close()
        return found

    def tally(self, case: str, load: Load) -> Tally:
        """Read the topic of a finished producer, and count."""
        there = Counter(int(message.value() or b"-1") for message in self.read(load.topic))
        return Tally(
            case=case,
            sent=load.sent,
            acknowledged=len(load.acknowledged),
            refused=sum(load.refused.values()),
            lost=len(load.acknowledged - there.keys()),
            repeated=sum(there.values()) - len(there),
            longest_wait_s=load.longest_wait_s,
        )


class Load:
    """A producer that sends numbered records until it is closed, and keeps which ones were acknowledged."""

    def __init__(self, stage: Stage, topic: str, acks: str = "all", rate: int = RATE, padding_bytes: int = 0) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.highest_offset = -1
        self.refused: Counter[str] = Counter()
        self.longest_wait_s = 0.0
        self._stage = stage
        self._rate = rate
        self._padding = b"0" * padding_bytes  # in front of the number, which stays the same
        self._last_s = time.monotonic()
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": stage.cluster.bootstrap,
                "acks": acks,
                "enable.idempotence": acks == "all",
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "request.timeout.ms": 5000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 500,
                **CLIENT,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"drill-{topic}", daemon=True)

    def start(self) -> None:
        """Begin to send; return when the first records are acknowledged."""
        self._thread.start()
        self.wait_for_more(50)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Stop sending, and wait until each record is acknowledged or refused."""
        self._stopping.set()
        self._thread.join(WAIT_S)
        left = self._producer.flush(WAIT_S)
        if left:
            raise ClusterError(f"{left} records of {self.topic} were neither acknowledged nor refused: is it served?")

    def wait_for_more(self, count: int) -> float:
        """Wait until `count` more records are acknowledged. Returns the seconds it took."""
        wanted = len(self.acknowledged) + count
        return self._stage.wait(
            f"{count} more records of {self.topic} are acknowledged", lambda: len(self.acknowledged) >= wanted
        )

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - began_s) * self._rate) + 1
            while self.sent < due:
                try:
                    self._producer.produce(
                        self.topic, self._padding + b"%d" % self.sent, on_delivery=self._reporter(self.sent)
                    )
                except BufferError:
                    break
                self.sent += 1
            self._producer.poll(0.005)

    def _reporter(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.refused[error.name()] += 1
                return
            now_s = time.monotonic()
            if self.acknowledged:
                self.longest_wait_s = max(self.longest_wait_s, now_s - self._last_s)
            self._last_s = now_s
            self.acknowledged.add(number)
            self.highest_offset = max(self.highest_offset, message.offset() or 0)

        return report
