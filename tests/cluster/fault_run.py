"""Seeded faults on a cluster while the library works there, and the count of what became of every record.

A producer with a spool and one without send to a topic; two processes of one app consume it in every way there is. The
seed decides which brokers are killed, stopped and isolated, and when producers and consumers are killed. At most one
broker is missing at a time: the next one is hit when all replicas are in sync and records flow again. What was
acknowledged is then held against what is stored, and what is stored against the traces of each way to consume.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import penstock
from penstock.cluster.brokers import Cluster
from penstock.cluster.drills.stage import Stage
from penstock.cluster.networks import CUT_OFFS
from penstock.dead_letters import open_dead_letters, redrive
from penstock.model import DeadLetterFilter, LetterState
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.crash.dying_app import COPY, GLANCE, REFUSE, ROW, WAYS, Members, is_refused
from tests.producing.killing import Factory, arrived, factory
from tests.prove.judging import judge_producers

KILL: Final = "kill -9 a broker"
STOP: Final = "stop a broker"
ISOLATIONS: Final = {f"isolate a broker from {each}": each for each in CUT_OFFS}
KILL_CONSUMER: Final = "kill -9 a consumer"
KILL_PRODUCER: Final = "kill -9 a producer"
BROKER_KINDS: Final = (KILL, STOP, *ISOLATIONS)
CLIENT_KINDS: Final = (KILL_CONSUMER, KILL_PRODUCER)

BROKER_EVERY: Final = 4
"""20 faults hit brokers in each way once."""

PARTITIONS: Final = 2
MEMBERS: Final = 2
LONGEST_HOLD_S: Final = 3.0
LONGEST_CUT_S: Final = 9.0
"""Longer than a broker may be silent before others lead what it led, so that it wakes up as a zombie."""
WHOLE_S: Final = 300.0
FLOW_S: Final = 180.0
SETTLED_S: Final = 240.0
"""Generous: on a busy machine, a broker takes a minute to start, and a way to consume that progresses has longer."""
LOOK_AGAIN_S: Final = 0.5
RUN_RECORDS: Final = 30
PAUSE_S: Final = 0.1
KEYS: Final = 5


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    broker: int
    hold_s: float
    """How long a broker stays away, or how long a client is left alone before it is killed."""

    def __str__(self) -> str:
        which = f"broker {self.broker}, for" if self.kind in BROKER_KINDS else "after"
        return f"{self.kind} ({which} {self.hold_s:.1f} s)"


def plan(chance: random.Random, count: int, brokers: Sequence[int]) -> list[Fault]:
    """So many faults: every fourth one hits a broker, each in another way in turn; one takes as long as ten others."""
    faults: list[Fault] = []
    ways: list[str] = []
    for number in range(count):
        ways = ways or chance.sample(BROKER_KINDS, len(BROKER_KINDS))
        kind = ways.pop() if number % BROKER_EVERY == 0 else chance.choice(CLIENT_KINDS)
        longest_s = LONGEST_CUT_S if kind in ISOLATIONS else LONGEST_HOLD_S
        faults.append(Fault(kind, chance.choice(brokers), chance.uniform(0.2, longest_s)))
    return faults


@dataclass(frozen=True, slots=True)
class Row:
    """What became of the records of one way to send or to consume."""

    what: str
    promise: str
    records: int
    lost: int
    repeated: int

    @property
    def holds(self) -> bool:
        most_lost = self.records if self.promise == "at most once" else 0
        most_repeated = self.records if self.promise == "at least once" else 0
        return self.lost <= most_lost and self.repeated <= most_repeated


@dataclass(slots=True)
class Outcome:
    faults: Counter[str] = field(default_factory=Counter)
    rows: list[Row] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    longest_wait_s: float = 0.0
    """From the end of a fault of a broker until records flowed again."""

    def table(self) -> str:
        """As the docs show it."""
        lines = [f"{'fault':<34}{'times':>6}"]
        lines += [f"{kind:<34}{self.faults[kind]:>6}" for kind in (*BROKER_KINDS, *CLIENT_KINDS)]
        lines += ["", f"{'what':<34}{'promise':<16}{'records':>8}{'lost':>6}{'repeated':>10}"]
        lines += [
            f"{row.what:<34}{row.promise:<16}{row.records:>8,}{row.lost:>6,}{row.repeated:>10,}" for row in self.rows
        ]
        lines += ["", f"with all brokers back, records flowed again after at most {self.longest_wait_s:.1f} s"]
        return "\n".join(lines)


class FaultRun:
    """One run: everything is started, hit, brought to rest and counted by `play`."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int, session_s: float) -> None:
        self._cluster = cluster
        self._folder = folder
        self._chance = random.Random(seed)
        self._stage = Stage(cluster, seed, self._tell)
        self._app = Members(cluster.url, folder, WAYS, session_s, prefix=f"{fresh()}-")
        self._members: list[BaseProcess] = []
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._began_s = time.monotonic()
        self.told: list[str] = []
        self.outcome = Outcome()

    def play(self, count: int) -> Outcome:
        faults = plan(self._chance, count, self._cluster.numbers)
        self._app.prepare()
        self._stage.make_whole(WHOLE_S)
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(penstock.connect(self._cluster.url))
            for topic in (self._app.source, self._app.copies):
                stream.create_topic(topic, PARTITIONS)
            stack.callback(self._kill_members)
            stack.callback(self._stage.make_whole, WHOLE_S)
            self._members.extend(self._app.start() for _ in range(MEMBERS))
            made = stack.enter_context(factory(self._cluster.url, self._folder, [self._app.source]))
            sender = Sender(self._cluster.url, self._app.source, self._stopping)
            self._inflict_all(faults, made, sender)
            self._tell("all faults are over")
            self._settle(stream, made, sender)
        return self.outcome

    def _inflict_all(self, faults: Sequence[Fault], made: Factory, sender: Sender) -> None:
        """Send, and inflict the faults: those of brokers one after the other, those of clients meanwhile."""
        of_clients = [fault for fault in faults if fault.kind in CLIENT_KINDS]
        threads = [self._thread(lambda: self._produce(made)), self._thread(sender.run)]
        try:
            self._wait_for_flow()
            threads.append(self._thread(lambda: self._kill_clients(of_clients, made)))
            for fault in faults:
                if fault.kind in BROKER_KINDS:
                    self._hit_broker(fault)
            threads[-1].join(WHOLE_S)
            assert not threads[-1].is_alive(), f"not every fault of a client was inflicted within {WHOLE_S:g} s"
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join(WHOLE_S)
        assert not any(thread.is_alive() for thread in threads), "a producer did not finish"
        self._check()

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # handed over to the test, which raises it
                self._errors.append(error)
                self._stopping.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _produce(self, made: Factory) -> None:
        while not self._stopping.is_set():
            made.run(RUN_RECORDS, pause_s=PAUSE_S, flush_s=FLOW_S)

    def _kill_clients(self, faults: Sequence[Fault], made: Factory) -> None:
        for fault in faults:
            if self._stopping.wait(fault.hold_s):
                return
            self._inflict(fault)
            if fault.kind == KILL_PRODUCER:
                eventually("a producer runs", made.kill, FLOW_S)
                continue
            victim = self._members.pop(0)
            assert victim.exitcode is None, f"a consumer ended by itself, with {victim.exitcode}"
            victim.kill()
            victim.join()
            self._members.append(self._app.start())

    def _hit_broker(self, fault: Fault, *, is_flowing: bool = True) -> None:
        self._inflict(fault)
        if fault.kind == KILL:
            self._cluster.kill(fault.broker)
        elif fault.kind == STOP:
            self._cluster.stop(fault.broker)
        else:
            self._cluster.isolate(fault.broker, ISOLATIONS[fault.kind])
        threading.Event().wait(fault.hold_s)
        self._tell(f"broker {fault.broker} comes back")
        self._stage.make_whole(WHOLE_S)
        self._tell("all replicas are in sync")
        if is_flowing:
            self.outcome.longest_wait_s = max(self.outcome.longest_wait_s, self._wait_for_flow())

    def _inflict(self, fault: Fault) -> None:
        self._tell(str(fault))
        self.outcome.faults[fault.kind] += 1

    def _wait_for_flow(self) -> float:
        """Until each way to consume has handled more than it had. Gives how long that took, in seconds."""
        before = {way: self._app.calls_bytes(way) for way in WAYS}
        began_s = time.monotonic()
        while stuck := [way for way in WAYS if self._app.calls_bytes(way) == before[way]]:
            self._check()
            assert time.monotonic() - began_s < FLOW_S, f"nothing was handled for {FLOW_S:g} s by {stuck}"
            self._stopping.wait(0.02)
        took_s = time.monotonic() - began_s
        self._tell(f"records flow after {took_s:.1f} s")
        return took_s

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def _settle(self, stream: penstock.Connection, made: Factory, sender: Sender) -> None:
        """Let everything come to its end, and count."""
        made.drain(flush_s=FLOW_S)
        made.sizes[0] = sender.sent
        made.taken.update((0, number) for number in sender.acknowledged)
        records = arrived(stream, [self._app.source])
        judged = judge_producers(made.taken, made.sizes, records)
        self.outcome.broken += judged.broken
        told = (len(made.taken), len(judged.lost), len(judged.repeated))
        self.outcome.rows.append(Row("producers, with and without spool", "exactly once", *told))
        stored = {f"{run} {number}".encode() for _, run, number in records[self._app.source]}
        self._tell(f"{len(stored)} records are stored")
        refused = {value for value in stored if is_refused(value)}
        for way in WAYS:
            self._count(way, stream, stored - refused if way == REFUSE else stored)
        self._redrive(stream, refused)

    def _count(self, way: str, stream: penstock.Connection, expected: Collection[bytes]) -> None:
        promise = {COPY: "exactly once", ROW: "exactly once", GLANCE: "at most once"}.get(way, "at least once")
        letters = self._letters(stream, way)
        if promise == "at most once":
            seen = self._app.seen(way, stream)
        else:
            seen = self._seen_when_all_are_there(way, stream, expected)
        # A record that several processes died with may be given up: it is not lost, it is a dead letter.
        missing = set(expected) - seen.keys() - letters
        repeated = sum(count - 1 for count in seen.values())
        self.outcome.rows.append(Row(way, promise, len(expected), len(missing), repeated))
        if strange := seen.keys() - set(expected):
            self.outcome.broken.append(f"{way}: {len(strange)} values were never stored, such as {sorted(strange)[:5]}")
        self._tell(f"{way}: counted")

    def _seen_when_all_are_there(
        self, way: str, stream: penstock.Connection, expected: Collection[bytes]
    ) -> Counter[bytes]:
        deadline_s = time.monotonic() + SETTLED_S
        fewest = len(expected)
        while True:
            seen = self._app.seen(way, stream)
            missing = set(expected) - seen.keys()
            if not missing or missing <= self._letters(stream, way):
                return seen
            if len(missing) < fewest:  # slow is not lost: after several deaths, records are handled in groups
                fewest, deadline_s = len(missing), time.monotonic() + SETTLED_S
            if time.monotonic() > deadline_s:
                self._tell_what_is_stuck(way, stream)
                return seen
            self._check_members()
            threading.Event().wait(LOOK_AGAIN_S)

    def _tell_what_is_stuck(self, way: str, stream: penstock.Connection) -> None:
        self._tell(f"{way} has not come to its end: {stream.group_admin().describe(self._app.group(way))}")
        for member in self._members:
            os.kill(member.pid or 0, signal.SIGUSR1)
        threading.Event().wait(LOOK_AGAIN_S)
        self._tell(f"{self._app.output()[-20_000:]}\n{self._app.stacks()}")

    def _letters(self, stream: penstock.Connection, way: str) -> set[bytes]:
        """The values that a group has given up."""
        letters = open_dead_letters(f"{self._app.source}.dlq", stream)
        every = DeadLetterFilter(group=self._app.group(way), states=frozenset(LetterState))
        try:
            return {letter.record.value or b"" for letter in letters.browse(every, limit=1_000_000)}
        finally:
            letters.close()

    def _redrive(self, stream: penstock.Connection, refused: Collection[bytes]) -> None:
        """What was refused is a dead letter; mended and sent again, while a broker is cut off, each is handled."""
        eventually(
            "what was refused is a dead letter", lambda: set(refused) <= self._letters(stream, REFUSE), SETTLED_S
        )
        self._app.mend()
        cut_off = Fault("isolate a broker from all", self._chance.choice(self._cluster.numbers), LONGEST_CUT_S)
        hit = self._thread(lambda: self._hit_broker(cut_off, is_flowing=False))
        letters = open_dead_letters(f"{self._app.source}.dlq", stream)
        report = redrive(letters, stream, DeadLetterFilter(group=self._app.group(REFUSE)))
        letters.close()
        self._tell(f"{report.redriven} dead letters were redriven")
        hit.join(2 * WHOLE_S)
        assert not hit.is_alive(), "the isolated broker has not come back"
        self._check()
        eventually(
            "what was redriven is handled",
            lambda: set(refused) <= self._app.seen(REFUSE, stream).keys(),
            SETTLED_S,
        )
        seen = self._app.seen(REFUSE, stream)
        repeated = sum(seen[value] - 1 for value in refused)
        self.outcome.rows.append(Row("dead letters, redriven", "at least once", len(refused), 0, repeated))

    def _check_members(self) -> None:
        for member in self._members:
            assert member.exitcode is None, f"a consumer ended by itself, with {member.exitcode}"

    def _kill_members(self) -> None:
        for member in self._members:
            member.kill()
            member.join()

    def _tell(self, what: str) -> None:
        self.told.append(f"{time.monotonic() - self._began_s:7.1f} s  {what}")


class Sender:
    """Sends through a connection without a spool, and keeps what was acknowledged."""

    def __init__(self, url: str, topic: str, stopping: threading.Event) -> None:
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._url = url
        self._topic = topic
        self._stopping = stopping

    def run(self) -> None:
        with penstock.connect(self._url) as stream:
            while not self._stopping.wait(PAUSE_S):
                number, self.sent = self.sent, self.sent + 1
                receipt = stream.send(self._topic, f"0 {number}", f"plain-{number % KEYS}")
                receipt.add_done_callback(self._acknowledger(number))
            stream.flush()

    def _acknowledger(self, number: int) -> Callable[[penstock.Receipt], None]:
        def settled(receipt: penstock.Receipt) -> None:
            if receipt.error is None:
                self.acknowledged.add(number)

        return settled
