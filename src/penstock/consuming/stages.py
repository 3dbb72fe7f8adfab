"""Stages: tasks that a record emits, handled inside the app or through a topic that the app handles."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import queue
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from penstock.abc import Clock, Stream, TopicStream
from penstock.errors import ConfigError, HandlerError, PenstockError, Reject, UnknownTopicError
from penstock.model import NewRecord, Position, Receipt, Record
from penstock.model.observing import OBSERVED, send_traced
from penstock.model.retry import Retry
from penstock.serde import Topic
from penstock.streams.topic_patterns import TopicPattern

TreeEnded = Callable[[BaseException | None], None]
"""Called once when a tree is finished, with the error if it failed, by the thread that completed it."""

_BITS: Final = 64


class Tree:
    """The open tasks of one record in flight."""

    __slots__ = ("expires_s", "number", "on_end", "open")

    def __init__(self, number: int, open: int, on_end: TreeEnded, expires_s: float) -> None:
        self.number = number
        self.open = open
        self.on_end = on_end
        self.expires_s = expires_s


class Acknowledger:
    """The trees of a process. Thread-safe."""

    def __init__(self, clock: Clock, seed: int | None = None) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._trees: dict[int, Tree] = {}
        self._lock = threading.Lock()
        self.finished = 0
        self.failed = 0
        self.late = 0
        """Tasks that ended after their tree had failed, or whose tree is unknown here."""

    def add_tree(self, on_end: TreeEnded, timeout_s: float) -> tuple[int, int]:
        """Add a tree for a record that is about to be handled. Returns its number and that of the handler's task."""
        with self._lock:
            number, task = next(self._numbers), self._task()
            self._trees[number] = Tree(number, task, on_end, self._clock.monotonic_s() + timeout_s)
            return number, task

    def fork(self, tree: int) -> int | None:
        """Add a task to a tree. Returns its number; None when the tree has ended and the task is not needed."""
        with self._lock:
            found = self._trees.get(tree)
            if found is None:
                return None
            task = self._task()
            found.open ^= task
            return task

    def done(self, tree: int, task: int) -> None:
        """Mark a task as done. Tasks that it emits must have been added before."""
        with self._lock:
            found = self._trees.get(tree)
            if found is None:
                self.late += 1
                return
            found.open ^= task
            if found.open:
                return
            del self._trees[tree]
            self.finished += 1
        found.on_end(None)

    def fail(self, tree: int, error: BaseException) -> None:
        """Fail the tree because a task failed for good."""
        with self._lock:
            found = self._trees.pop(tree, None)
            if found is None:
                self.late += 1
                return
            self.failed += 1
        found.on_end(error)

    def drop(self, tree: int) -> None:
        """Forget a tree without calling `on_end`."""
        with self._lock:
            self._trees.pop(tree, None)

    def is_open(self, tree: int) -> bool:
        return tree in self._trees

    def expire(self) -> int:
        """Fail the trees that took too long. Returns how many."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            overdue = [tree for tree in self._trees.values() if tree.expires_s <= now_s]
            for tree in overdue:
                del self._trees[tree.number]
            self.failed += len(overdue)
        for tree in overdue:
            tree.on_end(TimeoutError("some of the tasks that the record emitted did not end in time"))
        return len(overdue)

    def __len__(self) -> int:
        """How many records are in flight."""
        return len(self._trees)

    def _task(self) -> int:
        return self._random.getrandbits(_BITS) or 1


logger = logging.getLogger(__name__)

TREE_HEADER: Final = "penstock-tree"
"""Header of a record that is a task of a tree: the owning process, the tree, and the task."""
ACKS_TOPIC: Final = "penstock.acks"
"""The topic on which processes acknowledge tasks of each other's trees."""
WAITING: Final = 10_000
"""How many tasks may wait for a stage. Adding another waits for room, and fails after a while."""
_ROOM_S: Final = 30.0
_EXPIRE_EVERY_S: Final = 0.1


class Branch(NamedTuple):
    """A task: its tree, its number, its value, and the root record."""

    tree: int
    task: int
    value: Any
    root: Record


class StageContext:
    """What a stage's function can ask for besides the value."""

    __slots__ = ("_branch", "_stages", "root")

    def __init__(self, stages: Stages, branch: Branch) -> None:
        self._stages = stages
        self._branch = branch
        self.root = branch.root
        """The record that emitted the first task."""

    def emit(self, stage: str | Topic[Any], value: Any, key: object = None) -> None:
        """Give another task to a stage or a topic of the app. The root record is finished when it is, too."""
        self._stages.emit(self._branch.tree, self._branch.root, stage, value, key)


@dataclass(frozen=True, slots=True)
class Stage:
    """A function for tasks, and its settings."""

    name: str
    function: Callable[..., Any]
    workers: int
    retry: Retry
    with_context: bool


class TaskMark(NamedTuple):
    """The content of a tree header."""

    keeper: str
    tree: int
    task: int


def task_of(record: Record) -> TaskMark | None:
    """The tree and task of a record; None for a record that is not a task."""
    for name, data in record.headers:
        if name == TREE_HEADER and data is not None:
            keeper, _, rest = data.decode(errors="replace").partition("/")
            tree, _, task = rest.partition("/")
            if tree.isdecimal() and task.isdecimal():
                return TaskMark(keeper, int(tree), int(task))
    return None


class Stages:
    """All stages of an app, the trees of its records, and the threads that run them."""

    def __init__(
        self, stages: Iterable[Stage], topics: Sequence[Topic[Any] | TopicPattern], stream: Stream | None, clock: Clock
    ) -> None:
        self._stages = {stage.name: stage for stage in stages}
        self._topics = {topic.name: topic for topic in topics if isinstance(topic, Topic)}
        self._patterns = [pattern for pattern in topics if isinstance(pattern, TopicPattern)]
        self._stream = stream
        self._clock = clock
        self._queues: dict[str, queue.Queue[Branch]] = {name: queue.Queue(WAITING) for name in self._stages}
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._random = random.Random()
        self.keeper = uuid.uuid4().hex
        """The name of this process in tree headers."""
        self.acknowledger = Acknowledger(clock)
        self._reads_acks = False
        self._acks_lock = threading.Lock()

    def start(self) -> None:
        for stage in self._stages.values():
            for number in range(stage.workers):
                self._start_thread(functools.partial(self._work, stage), f"stage-{stage.name}-{number}")
        self._start_thread(self._expire, "trees")

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def emit(self, tree: int, root: Record, to: str | Topic[Any], value: Any, key: object = None) -> None:
        """Add a task to a tree."""
        name = str(to)
        stage = self._stages.get(name)
        topic = to if isinstance(to, Topic) else self._topics.get(name)
        pattern = next((each for each in self._patterns if each.matches(name)), None)
        if topic is None and pattern is not None:
            topic = pattern.topic(name)
        if stage is None and (topic is None or (name not in self._topics and pattern is None)):
            known = sorted({*self._stages, *self._topics, *map(str, self._patterns)})
            raise HandlerError(f"the app has no stage or handled topic {name!r}; it has {', '.join(known)}")
        task = self.acknowledger.fork(tree)
        if task is None:
            return  # the tree has ended: it timed out, or another task failed
        if stage is not None:
            try:
                self._queues[name].put(Branch(tree, task, value, root), timeout=_ROOM_S)
            except queue.Full:
                raise StageError(
                    f"stage {name!r} has {WAITING} tasks waiting and no room for another within {_ROOM_S:g} s: "
                    "give it more workers"
                ) from None
            return
        assert topic is not None
        self._start_reading_acks()
        mark = f"{self.keeper}/{tree}/{task}".encode()
        record = topic.new_record(value, key, headers=[(TREE_HEADER, mark)])
        tracer = OBSERVED.tracer
        receipt = self._append(record) if tracer is None else send_traced(tracer, record, self._append)
        receipt.add_done_callback(
            lambda done: self.acknowledger.fail(tree, done.error) if done.error is not None else None
        )

    def _append(self, record: NewRecord) -> Receipt:
        assert self._stream is not None
        (receipt,) = self._stream.open_topic(record.topic).append([record])
        return receipt

    def finished(self, record: Record, error: BaseException | None) -> None:
        """Acknowledge a finished record if it is a task of a tree, here or in another process."""
        task = task_of(record)
        if task is None or self._stream is None:  # without a stream, no task is a record
            return
        if task.keeper == self.keeper:
            self._task_ended(task.tree, task.task, error)
            return
        text = "" if error is None else f"{type(error).__name__}: {error}"
        value = msgspec.json.encode({"keeper": task.keeper, "tree": task.tree, "task": str(task.task), "error": text})
        self._stream.open_topic(ACKS_TOPIC).append([NewRecord(ACKS_TOPIC, value, task.keeper.encode())])

    def _task_ended(self, tree: int, task: int, error: BaseException | None) -> None:
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
                delay_s = stage.retry.delay_after(attempts, error, self._random)
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

    def _start_reading_acks(self) -> None:
        """Read acknowledgements of other processes. Started when the first task goes to a topic."""
        with self._acks_lock:
            if self._reads_acks:
                return
            self._reads_acks = True
            assert self._stream is not None
            acks = self._stream.open_topic(ACKS_TOPIC)
            try:
                partitions = list(acks.partitions())
            except UnknownTopicError:
                self._stream.create_topic(ACKS_TOPIC)
                partitions = list(acks.partitions())
            starts = {partition: acks.locate(partition, Position.LATEST) for partition in partitions}
            self._start_thread(lambda: self._read_acks(acks, starts), "acks")

    def _read_acks(self, acks: TopicStream, positions: dict[int, int]) -> None:
        while not self._stopping.is_set():
            for partition in positions:
                try:
                    batch = acks.read(partition, positions[partition], 1000, 0.2 / len(positions))
                except PenstockError as error:
                    logger.warning("acknowledgements of other processes cannot be read; retrying: %s", error)
                    self._stopping.wait(1.0)
                    continue
                positions[partition] = batch.next
                for record in batch:
                    self._take_ack(record)

    def _take_ack(self, record: Record) -> None:
        try:
            told = msgspec.json.decode(record.value or b"", type=dict[str, Any])
            if told["keeper"] == self.keeper:
                error = StageError(told["error"]) if told["error"] else None
                self._task_ended(int(told["tree"]), int(told["task"]), error)
        except (msgspec.MsgspecError, KeyError, ValueError):
            logger.warning("%s is not an acknowledgement", record.place)

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"penstock-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()


class StageError(PenstockError):
    """A task that a record emitted failed for good."""


def stage_of(name: str, function: Callable[..., Any], workers: int, retry: Retry) -> Stage:
    """Make a stage from a function that takes the value and, optionally, a StageContext."""
    if not isinstance(name, str) or not name:
        raise HandlerError(f"{name!r} is not a stage name: pass a non-empty string")
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise HandlerError(f"stage {name!r}: {function!r} must be a plain function")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"stage {name!r}: workers={workers!r} must be an integer >= 1")
    wanted = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if not 1 <= len(wanted) <= 2:
        raise HandlerError(
            f"stage {name!r}: its function must take the value and, optionally, a context; it takes {len(wanted)}"
        )
    return Stage(name, function, workers, retry, with_context=len(wanted) == 2)
