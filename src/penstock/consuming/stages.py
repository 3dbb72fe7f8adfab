"""Stages: the tasks that a record forks into, inside the app or through a topic that it handles itself."""

from __future__ import annotations

import functools
import inspect
import logging
import queue
import random
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from penstock.abc import Clock, Streams
from penstock.consuming.ack_trees import Acknowledger, Settled
from penstock.consuming.retry import Retry
from penstock.errors import ConfigError, HandlerError, PenstockError, Reject, UnknownTopicError
from penstock.model import NewRecord, Position, Receipt, Record
from penstock.model.observing import OBSERVED, send_traced
from penstock.serde import Topic

logger = logging.getLogger(__name__)

TREE_HEADER: Final = "penstock-tree"
"""On a record that is a task of a tree: which process keeps the tree, which tree, which task."""
ACKS_TOPIC: Final = "penstock.acks"
"""Where a process tells another that a task of one of its trees has ended."""
WAITING: Final = 10_000
"""Tasks that may wait for a stage. Whoever wants to add one waits for room, and fails after a while."""
_ROOM_S: Final = 30.0
_EXPIRE_EVERY_S: Final = 0.1


class Branch(NamedTuple):
    """A task: its tree, its own number, what it is about."""

    tree: int
    task: int
    value: Any
    root: Record


class StageContext:
    """What a stage's function may ask for beside the value."""

    __slots__ = ("_branch", "_stages", "root")

    def __init__(self, stages: Stages, branch: Branch) -> None:
        self._stages = stages
        self._branch = branch
        self.root = branch.root
        """The record that all of this is about."""

    def emit(self, stage: str | Topic[Any], value: Any, key: object = None) -> None:
        """Give another task to a stage or a topic of the app: the record is finished when that is, too."""
        self._stages.emit(self._branch.tree, self._branch.root, stage, value, key)


@dataclass(frozen=True, slots=True)
class Stage:
    """A function for tasks, and how it is run."""

    name: str
    function: Callable[..., Any]
    workers: int
    retry: Retry
    with_context: bool


class TaskOfTree(NamedTuple):
    """What the header of a record says."""

    keeper: str
    tree: int
    task: int


def task_of(record: Record) -> TaskOfTree | None:
    """Which task of which tree a record is; None for one that is none."""
    for name, data in record.headers:
        if name == TREE_HEADER and data is not None:
            keeper, _, rest = data.decode(errors="replace").partition("/")
            tree, _, task = rest.partition("/")
            if tree.isdecimal() and task.isdecimal():
                return TaskOfTree(keeper, int(tree), int(task))
    return None


class Stages:
    """All stages of an app, the trees of its records, and the threads that work on them."""

    def __init__(self, stages: Iterable[Stage], topics: Iterable[Topic[Any]], streams: Streams, clock: Clock) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._topics = {topic.name: topic for topic in topics}
        self._streams = streams
        self._clock = clock
        self._queues: dict[str, queue.Queue[Branch]] = {name: queue.Queue(WAITING) for name in self._stages}
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._chance = random.Random()
        self.keeper = uuid.uuid4().hex
        """The name of this process for others that work on tasks of its trees."""
        self.acknowledger = Acknowledger(clock)
        self._listens = False
        self._listening = threading.Lock()

    def start(self) -> None:
        for stage in self._stages.values():
            for number in range(stage.workers):
                self._begin(functools.partial(self._work, stage), f"stage-{stage.name}-{number}")
        self._begin(self._expire, "trees")

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def plant(self, settled: Settled, timeout_s: float) -> tuple[int, int]:
        return self.acknowledger.plant(settled, timeout_s)

    def emit(self, tree: int, root: Record, to: str | Topic[Any], value: Any, key: object = None) -> None:
        """Add a task to a tree."""
        name = str(to)
        stage = self._stages.get(name)
        if stage is None and name not in self._topics:
            known = sorted({*self._stages, *self._topics})
            raise HandlerError(f"the app has no stage and handles no topic {name!r}; it has {', '.join(known)}")
        task = self.acknowledger.fork(tree)
        if task is None:
            return  # the tree is settled: it timed out, or another branch has failed
        if stage is not None:
            try:
                self._queues[name].put(Branch(tree, task, value, root), timeout=_ROOM_S)
            except queue.Full:
                raise StageError(
                    f"stage {name!r} has {WAITING} tasks waiting, and got no room for another within {_ROOM_S:g} s: "
                    "give it more workers"
                ) from None
            return
        self._listen()
        topic = to if isinstance(to, Topic) else self._topics[name]
        mark = f"{self.keeper}/{tree}/{task}".encode()
        record = topic.new_record(value, key, headers=[(TREE_HEADER, mark)])
        tracer = OBSERVED.tracer
        receipt = self._append(record) if tracer is None else send_traced(tracer, record, self._append)
        receipt.add_done_callback(
            lambda done: self.acknowledger.fail(tree, done.error) if done.error is not None else None
        )

    def _append(self, record: NewRecord) -> Receipt:
        (receipt,) = self._streams.stream(record.topic).append([record])
        return receipt

    def finished(self, record: Record, error: BaseException | None) -> None:
        """A record of a topic is finished: if it is a task of a tree, whoever keeps that is told."""
        task = task_of(record)
        if task is None:
            return
        if task.keeper == self.keeper:
            self._heard(task.tree, task.task, None if error is None else error)
            return
        text = "" if error is None else f"{type(error).__name__}: {error}"
        value = msgspec.json.encode({"keeper": task.keeper, "tree": task.tree, "task": str(task.task), "error": text})
        self._streams.stream(ACKS_TOPIC).append([NewRecord(ACKS_TOPIC, value, task.keeper.encode())])

    def _heard(self, tree: int, task: int, error: BaseException | None) -> None:
        if error is None:
            self.acknowledger.done(tree, task)
        else:
            self.acknowledger.fail(tree, error)

    def _work(self, stage: Stage) -> None:
        waiting = self._queues[stage.name]
        while not self._stopping.is_set():
            try:
                branch = waiting.get(timeout=0.2)
            except queue.Empty:
                continue
            self._run(stage, branch)

    def _run(self, stage: Stage, branch: Branch) -> None:
        attempts = 0
        while self.acknowledger.is_open(branch.tree) and not self._stopping.is_set():
            attempts += 1
            try:
                self._call(stage, branch, attempts)
            except Exception as error:
                delay_s = stage.retry.delay_after(attempts, error, self._chance)
                if delay_s is None:
                    kind = Reject if isinstance(error, Reject) else StageError
                    failure = kind(f"stage {stage.name!r}: {type(error).__name__}: {error}")
                    failure.__cause__ = error
                    self.acknowledger.fail(branch.tree, failure)
                    return
                self._stopping.wait(delay_s)
            else:
                self.acknowledger.done(branch.tree, branch.task)
                return

    def _call(self, stage: Stage, branch: Branch, attempt: int) -> None:
        given = (branch.value, StageContext(self, branch)) if stage.with_context else (branch.value,)
        tracer = OBSERVED.tracer
        if tracer is None:
            stage.function(*given)
            return
        with tracer.handling((branch.root,), group="", handler=f"stage {stage.name}", attempt=attempt) as call:
            try:
                stage.function(*given)
            except Exception as error:
                call.failed(error, again=stage.retry.goes_on_after(attempt, error))
                raise

    def _expire(self) -> None:
        while not self._stopping.wait(_EXPIRE_EVERY_S):
            self.acknowledger.expire()

    def _listen(self) -> None:
        """Hear from other processes about tasks of our trees; once there is one that they might get."""
        with self._listening:
            if self._listens:
                return
            self._listens = True
            stream = self._streams.stream(ACKS_TOPIC)
            try:
                partitions = list(stream.partitions())
            except UnknownTopicError:
                self._streams.create_topic(ACKS_TOPIC)
                partitions = list(stream.partitions())
            starts = {partition: stream.locate(partition, Position.LATEST) for partition in partitions}
            self._begin(lambda: self._hear_acks(starts), "acks")

    def _hear_acks(self, places: dict[int, int]) -> None:
        stream = self._streams.stream(ACKS_TOPIC)
        while not self._stopping.is_set():
            for partition in places:
                try:
                    batch = stream.read(partition, places[partition], 1000, 0.2 / len(places))
                except PenstockError as error:
                    logger.warning("acknowledgements of other processes cannot be read, and are tried again: %s", error)
                    self._stopping.wait(1.0)
                    continue
                places[partition] = batch.next
                for record in batch:
                    self._take_ack(record)

    def _take_ack(self, record: Record) -> None:
        try:
            told = msgspec.json.decode(record.value or b"", type=dict[str, Any])
            if told["keeper"] == self.keeper:
                error = StageError(told["error"]) if told["error"] else None
                self._heard(int(told["tree"]), int(told["task"]), error)
        except (msgspec.MsgspecError, KeyError, ValueError):
            logger.warning("%s is no acknowledgement", record.place)

    def _begin(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"penstock-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()


class StageError(PenstockError):
    """A task that a record forked into failed for good."""


def stage_of(name: str, function: Callable[..., Any], workers: int, retry: Retry) -> Stage:
    """A stage from a function that takes the value, and a StageContext or `ctx` if it likes."""
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise HandlerError(f"stage {name!r}: {function!r} is no plain function")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"stage {name!r}: workers={workers!r} is no number of 1 or more")
    wanted = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if not 1 <= len(wanted) <= 2:
        raise HandlerError(
            f"stage {name!r}: its function takes the value, and a context if it likes; it takes {len(wanted)}"
        )
    return Stage(name, function, workers, retry, with_context=len(wanted) == 2)
