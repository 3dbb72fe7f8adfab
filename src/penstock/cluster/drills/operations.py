"""Drills of operations: rolling restart, racks, moving partitions, a full disk, compaction with a follower behind."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, Producer, TopicPartition

from penstock.cluster.drills.stage import CLIENT, Load, Outcome, Stage, Tally
from penstock.cluster.requests import reassign
from penstock.errors import ClusterError

READ_S: Final = 30.0
ENOUGH_BYTES: Final = 20_000
KEYS: Final = 40
ROUNDS: Final = 60
PADDING_BYTES: Final = 1000
DISK_MB: Final = 128
ROOM_BYTES: Final = 300_000
"""How much the disk of the broker still takes when it becomes full."""


class Reader:
    """A consumer that reads a topic while the cluster is worked on, and counts its errors.

    It has a thread of its own also because a signal that arrives in a callback of librdkafka, which only the main
    thread can be in, would keep the consumer from closing.
    """

    def __init__(self, stage: Stage, topic: str, **settings: Any) -> None:
        self.errors: Counter[str] = Counter()
        self.read = 0
        self._consumer = stage.consumer(**settings)
        self._consumer.assign([TopicPartition(topic, each.number, 0) for each in stage.partitions(topic)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drill-reader", daemon=True)
        self._thread.start()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(READ_S)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(1000, timeout=0.1):
                error: KafkaError | None = message.error()
                if error is not None:
                    self.errors[error.name()] += 1
                else:
                    self.read += 1


def rolling_restart(stage: Stage) -> Outcome:
    """Restart one broker after the other, as for an upgrade, while clients write and read."""
    numbers = stage.cluster.numbers
    placement = [numbers[step:] + numbers[:step] for step in range(len(numbers))]
    topic = stage.topic("rolling", placement, min_insync_replicas="2")
    with Load(stage, topic) as load, Reader(stage, topic) as reader:
        for number in stage.shuffled_brokers():
            stage.tell(f"broker {number} is stopped (SIGTERM)")
            began_s = time.monotonic()
            stage.cluster.stop(number)
            stage.found(f"broker {number} handed over and stopped", f"{time.monotonic() - began_s:.1f} s")
            stage.start(number)
            stage.timed(f"all in sync after broker {number}", stage.is_whole)
        load.finish()
        stage.wait("the consumer has read everything", lambda: reader.read >= load.sent)
    tally = stage.tally("acks=all, min.insync.replicas=2", load)
    stage.found("errors at the consumer", sum(reader.errors.values()))
    return Outcome(
        why="A broker that is stopped in order hands each leadership to another in-sync replica before it ends, "
        "and clients follow at their next request, so nobody waits for a timeout. Waiting until all "
        "replicas are in sync before the next restart keeps at least two of them at any time, which "
        "min.insync.replicas=2 needs.",
        tallies=[tally],
        claims={
            "no error at the producer": tally.refused == 0,
            "no error at the consumer": not reader.errors,
            "acknowledged lost 0": tally.lost == 0,
            "repeated 0": tally.repeated == 0,
        },
    )


def rack_awareness(stage: Stage) -> Outcome:
    """Replicas are spread over racks, and a consumer reads from the replica in its own rack."""
    racks = {broker.number: broker.rack for broker in stage.cluster.brokers}
    most = min(2, len(set(racks.values())))
    spread = stage.placed_topic("racks", partitions=12, replicas=2)
    placed = [{racks[number] for number in each.replicas} for each in stage.partitions(spread)]
    stage.found("brokers and their racks", ", ".join(f"{number}: {rack}" for number, rack in racks.items()))
    stage.found("racks per partition, of two replicas", f"{min(map(len, placed))} to {max(map(len, placed))}")

    leader, *followers = stage.shuffled_brokers()[:3]
    near = next((number for number in followers if racks[number] != racks[leader]), None)
    if near is None:
        raise ClusterError("all brokers are in one rack: start the cluster with --racks a,b,c")
    topic = stage.topic("near", [[leader, *followers]])
    fetches: Counter[int] = Counter()
    settings = {"client.rack": racks[near], "statistics.interval.ms": 200, "stats_cb": partial(_count_bytes, fetches)}
    with Load(stage, topic) as load, Reader(stage, topic, **settings):
        stage.wait("the consumer reads from the follower in its rack", lambda: fetches[near] > ENOUGH_BYTES, READ_S)
    for number in sorted(fetches):
        role = "leader" if number == leader else "follower"
        own = ", the consumer's rack" if racks[number] == racks[near] else ""
        stage.found(f"bytes read from broker {number} ({role}, rack {racks[number]}{own})", f"{fetches[number]:,}")
    tally = stage.tally("acks=all", load)
    return Outcome(
        why="The controller places the replicas of a partition in as many racks as it can (broker.rack), so "
        "that the loss of a rack leaves a replica. The leader tells a consumer with client.rack to fetch "
        "from the in-sync follower in its rack (replica.selector.class), which spares the traffic between "
        "racks.",
        tallies=[tally],
        claims={
            f"every partition has replicas in {most} racks": all(len(each) == most for each in placed),
            "the consumer read from the follower in its rack": fetches[near] > ENOUGH_BYTES,
            "that is more than it read from the leader": fetches[near] > fetches[leader],
            "acknowledged lost 0": tally.lost == 0,
        },
    )


def _count_bytes(fetched: Counter[int], statistics: str) -> None:
    """Keep how many bytes librdkafka has received from each broker."""
    for broker in json.loads(statistics)["brokers"].values():
        if broker["nodeid"] > 0 and broker["source"] != "internal":
            fetched[broker["nodeid"]] = broker["rxbytes"]


def reassignment(stage: Stage) -> Outcome:
    """Move all partitions of a topic to other brokers while a producer writes to it."""
    numbers = stage.shuffled_brokers()[:3]
    one, two, three = numbers
    topic = stage.topic("moving", [[one, two], [two, three], [three, one]], min_insync_replicas="2")
    target = {0: (two, three), 1: (three, one), 2: (one, two)}
    with Load(stage, topic, rate=2000) as load, Reader(stage, topic) as reader:
        load.wait_for_more(4000)
        broker = stage.cluster.broker(one)
        reassign(broker.host, broker.port, topic, target)
        stage.timed("all partitions are moved", partial(_is_placed, stage, topic, target))
        load.wait_for_more(1000)
        load.finish()
        stage.wait("the consumer has read everything", lambda: reader.read >= load.sent)
    stage.found("replicas", "; ".join(f"{each.number}: {list(each.replicas)}" for each in stage.partitions(topic)))
    tally = stage.tally("acks=all, min.insync.replicas=2", load)
    return Outcome(
        why="The controller adds the new replicas to the old ones, lets them fetch the log, and only when they "
        "are in sync makes one of them leader and removes the others, so at every moment all acknowledged "
        "records have an in-sync replica. Clients are told by the former leader that it no longer is one, "
        "and ask for the new one.",
        tallies=[tally],
        claims={
            "every partition is where it was moved to": _is_placed(stage, topic, target),
            "no error at the producer": tally.refused == 0,
            "no error at the consumer": not reader.errors,
            "acknowledged lost 0": tally.lost == 0,
            "repeated 0": tally.repeated == 0,
        },
    )


def _is_placed(stage: Stage, topic: str, target: Mapping[int, tuple[int, ...]]) -> bool:
    found = stage.partitions(topic)
    return bool(found) and all(
        set(each.replicas) == set(each.in_sync) == set(target[each.number]) and each.leader in target[each.number]
        for each in found
    )


def full_disk(stage: Stage) -> Outcome:
    """The leader cannot write any more, because its disk is full, while a producer writes."""
    if sys.platform != "linux":
        raise ClusterError("this drill limits the file size of a running process, which only Linux can")
    leader, *followers = stage.shuffled_brokers()[:3]
    topic = stage.topic("full", [[leader, *followers]], min_insync_replicas="2")
    with Load(stage, topic, padding_bytes=PADDING_BYTES) as load:
        load.wait_for_more(200)
        data = stage.cluster.folder / f"broker-{leader}" / "data"
        filler = data / "filler"
        if is_own_disk := os.path.ismount(data):
            _fill_disk(filler)
        else:
            limit = (data / f"{topic}-0" / f"{0:020d}.log").stat().st_size + ROOM_BYTES
            resource.prlimit(stage.cluster.broker(leader).pid, resource.RLIMIT_FSIZE, (limit, limit))
        what = "a disk that is full (ENOSPC)" if is_own_disk else "a limit on the size of its files (EFBIG)"
        stage.found(f"broker {leader} has", what)
        stage.timed("the broker gives up its leadership", lambda: stage.is_led_without(topic, leader))
        load.wait_for_more(200)
        stage.wait("the broker ends", lambda: not stage.cluster.is_running(leader))
        failed = _reason_of_end(stage.cluster.output(leader).read_text(errors="replace"))
        stage.found("the broker ended, and wrote", failed.replace(f"{stage.cluster.folder}/", "") or "nothing")
        load.wait_for_more(200)
        filler.unlink(missing_ok=True)
        stage.start(leader)  # with a disk that has room again
        stage.timed("all replicas in sync, with room again", lambda: not stage.partition(topic).out_of_sync)
    tally = stage.tally("acks=all, min.insync.replicas=2", load)
    return Outcome(
        why="A write that fails takes the log directory offline, and a broker without another one shuts down, "
        "so its partitions fail over as after a crash; what it could not write was not acknowledged. Back "
        "with room on its disk, it truncates the torn end of its log and fetches the rest from the new "
        "leader.",
        tallies=[tally],
        claims={
            "the broker ended because its log directory failed": bool(failed),
            "another broker leads": stage.is_led_without(topic, leader),
            "no record was refused": tally.refused == 0,
            "acknowledged lost 0": tally.lost == 0,
            "repeated 0": tally.repeated == 0,
        },
    )


def _fill_disk(filler: Path) -> None:
    """Leave a little room on the disk of this file."""
    found = os.statvfs(filler.parent)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - ROOM_BYTES))


def _reason_of_end(output: str) -> str:
    """What a broker wrote about its log directory before it ended; empty if nothing."""
    found = re.search(r"Shutdown broker because all log dirs.*|.*No space left on device.*|.*File too large.*", output)
    return "" if found is None else found.group()


def compaction(stage: Stage) -> Outcome:
    """A topic is compacted while a follower is down; afterwards that follower leads."""
    leader, behind, third = stage.shuffled_brokers()[:3]
    topic = stage.topic(
        "compacted",
        [[leader, behind, third]],
        cleanup_policy="compact",
        min_insync_replicas="2",
        segment_ms="1000",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="1000",
    )
    written = KeyedWriter(stage, topic)
    written.rounds(ROUNDS // 3)
    stage.kill(behind)
    written.rounds(ROUNDS // 3)
    stage.wait("the follower is out of sync", lambda: not stage.is_in_sync(topic, behind))
    written.rounds(ROUNDS // 3)
    written.delete_some()
    before = stage.end_offsets(topic)[0]
    # The newest segment is never compacted; a record a second later begins the next one.
    stage.timed("the leader has compacted its log", partial(_is_compacted, stage, topic, written))
    left = len(stage.read(topic))
    stage.start(behind)
    stage.timed("the follower is in sync", lambda: stage.is_in_sync(topic, behind))
    at_leader = written.values()
    stage.move_leader(topic, behind)
    at_follower = written.values()
    stage.found("records written", before)
    stage.found("records left after compaction", left)
    stage.found("keys with a value, and deleted ones", f"{len(written.expected)}, {KEYS // 4}")
    wrong = {
        key for key in written.expected.keys() | at_follower.keys() if at_follower.get(key) != written.expected.get(key)
    }
    tally = Tally("acks=all; lost: keys with another value", before, before, 0, len(wrong), 0, written.longest_wait_s)
    return Outcome(
        why="Compaction removes records that a newer one of their key replaced, each broker for itself, and "
        "never changes an offset, so a follower that was away goes on where it stopped and is only spared "
        "what is gone. It must be back within delete.retention.ms: after that, deletions are removed, too, "
        "and it would keep the deleted keys.",
        tallies=[tally],
        claims={
            "the log was compacted": left < before // 2,
            "the leader has the newest value of each key": at_leader == written.expected,
            "the follower that was behind has the same as leader": at_follower == written.expected,
        },
    )


class KeyedWriter:
    """Writes new values of the same keys again and again, and knows the newest of each."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self.expected: dict[bytes, bytes] = {}
        self._stage = stage
        self._topic = topic
        self._count = 0
        self.longest_wait_s = 0.0
        settings: dict[str, Any] = {"bootstrap.servers": stage.cluster.bootstrap, "enable.idempotence": True, **CLIENT}
        self._producer = Producer(settings)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for key in range(KEYS):
                self.write(b"key-%d" % key, b"%d" % self._count)
        self.flush()

    def delete_some(self) -> None:
        for key in self._stage.random.sample(range(KEYS), KEYS // 4):
            self.write(b"key-%d" % key, None)
        self.flush()

    def write(self, key: bytes, value: bytes | None) -> None:
        self._producer.produce(self._topic, key=key, value=value)
        self._count += 1
        if value is None:
            self.expected.pop(key, None)
        else:
            self.expected[key] = value

    def flush(self) -> None:
        began_s = time.monotonic()
        if self._producer.flush(READ_S):
            raise ClusterError(f"{self._topic} did not acknowledge within {READ_S:.0f} s")
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_s)

    def values(self) -> dict[bytes, bytes]:
        """What a reader of the topic has in the end."""
        found: dict[bytes, bytes] = {}
        for message in self._stage.read(self._topic):
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found


def _is_compacted(stage: Stage, topic: str, written: KeyedWriter) -> bool:
    written.write(b"tick", b"%d" % time.monotonic_ns())
    written.flush()
    time.sleep(0.5)
    return len(stage.read(topic)) < stage.end_offsets(topic)[0] // 2
