"""The consumer of a gathering: it reads requests and answers, and sends each request's verdict when it is due.

Each partition of the requests has one owner in the group, by leases. It also reads the same partition of the answers,
and writes to the same partition of the verdicts. What was decided is known from the verdicts themselves: an owner first
reads those that an earlier one may have written. So a verdict is sent at once, without a transaction, and not again
after a crash.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.abc import Clock, DeadLetters, Stream, TopicStream
from penstock.checkpoints.opening import open_store
from penstock.consuming.counts import Counts
from penstock.consuming.deadlines.answer_reader import AnswerReader, records_since
from penstock.consuming.deadlines.gather import Gather
from penstock.consuming.deadlines.gathering import (
    ANSWER,
    MISSING,
    NO_REQUEST,
    REQUEST,
    RESULT,
    Answer,
    Gathering,
    LateAnswer,
    Request,
    text_headers,
    verdict_headers,
)
from penstock.consuming.defaults import Opened, default_store
from penstock.consuming.health import Health, PartitionHealth
from penstock.consuming.lease_groups.group import LeaseGroupFeed
from penstock.consuming.lease_groups.membership import member_name
from penstock.consuming.loop.failures import dead_letter_of
from penstock.consuming.loop_consumer import Background
from penstock.dead_letters import redrive_of
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    FencedError,
    HandlerError,
    OffsetOutOfRangeError,
    PenstockError,
    StoreUnavailableError,
    StreamError,
    UnknownTopicError,
)
from penstock.model import (
    Change,
    Checkpoint,
    CheckpointKey,
    DeadLetter,
    Failing,
    Lease,
    NewRecord,
    Pointer,
    Position,
    Receipt,
    Record,
)
from penstock.model.clock import SystemClock, wait_on
from penstock.serde import Topic
from penstock.streams.declared import provide_topic

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 1_000
_SLICE_S: Final = 0.05
_SAVE_EVERY_S: Final = 1.0
_CHECK_EVERY_S: Final = 0.2
_AGAIN_S: Final = 0.5
_HAND_BACK_S: Final = 10.0
"""How long a partition that moves waits for the acknowledgements of its verdicts."""


@dataclass(slots=True)
class _Partition:
    """A partition that this member owns."""

    number: int
    lease: Lease
    gathering: Gathering
    next: Pointer
    """After the last request read."""
    end: Pointer | None
    saved: Pointer
    unsettled: dict[Pointer, None] = field(default_factory=dict)
    """Requests that were read and have no acknowledged verdict, in order."""
    judged: int = 0
    settled: int = 0
    progressed_s: float = 0.0
    closed: bool = False

    @property
    def position(self) -> Pointer:
        """Everything before is settled."""
        return min(next(iter(self.unsettled), self.next), self.next)

    @property
    def is_at_end(self) -> bool:
        return self.end is not None and self.position >= self.end


class GatherConsumer(Background):
    """Runs one gathering, as a member of its group."""

    def __init__(self, stream: Stream, gather: Gather, clock: Clock | None = None) -> None:
        super().__init__(gather.name)
        self.handler = gather
        """What it is called in messages: it has a `name`, as handlers have."""
        self._gather = gather
        self._stream = stream
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        """Guards everything below. Notified when a deadline comes nearer, and at the end."""
        self._owned: dict[int, _Partition] = {}
        self._settled: collections.deque[tuple[_Partition, Pointer | None, Receipt]] = collections.deque()
        """Acknowledged or refused verdicts and late answers. Appended to by the thread of the stream."""
        self._letters: collections.deque[tuple[_Partition, Pointer | None, DeadLetter]] = collections.deque()
        self._saving = threading.Lock()
        self.counts = Counts()
        """Requests so far."""
        self._failure: BaseException | None = None
        self._problem = ""
        self._has_ended = threading.Event()
        self._readers: list[AnswerReader] = []
        self._verdicts: TopicStream | None = None
        self._late: TopicStream | None = None
        self._requests: TopicStream | None = None
        self._ends: Mapping[int, Pointer] = {}
        self._feed: LeaseGroupFeed | None = None
        self._store = self._open_store()
        self._dead_letters: DeadLetters | None = None
        self._has_begun = False

    def run(self) -> None:
        """Gather until `stop` is called or `end` is reached. Raises the error that ended it."""
        gather = self._gather
        try:
            with contextlib.ExitStack() as opened:
                if not self._open(opened):
                    return
                feed = self._feed = LeaseGroupFeed(
                    self._opened(self._requests),
                    self._store.store,
                    gather.group,
                    self,
                    member=gather.member or member_name(),
                    ttl_s=gather.session_timeout_s,
                    clock=self._clock,
                    start=gather.start,
                )
                threads = [
                    threading.Thread(target=self._watch, name=f"penstock-gather-{gather.name}", daemon=True),
                    threading.Thread(target=self._keep_saving, name=f"penstock-save-{gather.name}", daemon=True),
                ]
                for thread in threads:
                    thread.start()
                for reader in self._readers:
                    reader.start()
                self._has_begun = True
                try:
                    self._read_requests(feed)
                    self._finish_open(feed)
                finally:
                    try:
                        feed.close()
                    finally:
                        with self._changed:
                            self._has_ended.set()
                            self._changed.notify_all()
                        for reader in self._readers:
                            reader.stop()
                        for thread in threads:
                            thread.join()
                if self._failure is not None:
                    raise self._failure
        finally:
            self.abandon()

    def stop(self) -> None:
        self._stopping.set()

    def abandon(self) -> None:
        """Close what was opened for this consumer."""
        self._store.close()

    def health(self) -> Health:
        gather, now_s = self._gather, self._clock.monotonic_s()
        problems = [self._problem] if self._problem else []
        if not self._has_begun:
            problems.append("not running: it was not started, or waits for its topics")
        partitions = []
        with self._changed:
            owned = list(self._owned.values())
        for each in owned:
            end = None
            try:
                end = self._opened(self._requests).span(each.number)[1]
            except PenstockError as error:
                problems.append(str(error))
            in_flight = len(each.unsettled)
            partitions.append(PartitionHealth(each.number, each.position, end, in_flight, 0, now_s - each.progressed_s))
        is_running = self._has_begun and not self._stopping.is_set()
        judged, settled = sum(each.judged for each in owned), sum(each.settled for each in owned)
        return Health(
            gather.requests.name, gather.group, is_running, tuple(partitions), tuple(problems), judged, settled
        )

    def stuck(self) -> str:
        """Nothing that only a restart would fix is known of it."""
        return ""

    def unready(self) -> str:
        return "" if self._has_begun else "it waits for its topics"

    # Called by the group's feed, in the thread that reads requests.

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        starts: dict[int, Pointer] = {}
        for number, lease in partitions.items():
            assert lease is not None
            partition, from_ms = self._begun(number, lease)
            late, read_to = self._restore(partition, from_ms)
            with self._changed:
                self._owned[number] = partition
                for each in late:
                    self._send_late(partition, each)
            for reader, start in zip(self._readers, read_to, strict=True):
                reader.add(number, start)  # not before it is owned: `take_answer` drops answers of other partitions
            starts[number] = partition.next
        return starts

    def revoked(self, partitions: Sequence[int]) -> None:
        until_s = self._clock.monotonic_s() + _HAND_BACK_S
        handed_back = self._take_back(partitions)
        while self._clock.monotonic_s() < until_s:
            self._settle()
            if not any(each.unsettled for each in handed_back):
                break
            self._clock.sleep(0.005)
        for partition in handed_back:
            if partition.unsettled:
                logger.warning(
                    "%s: partition %d moves while %d verdicts are not acknowledged; its next owner may repeat them",
                    self._gather.name, partition.number, len(partition.unsettled),
                )  # fmt: skip
            self._save(partition)

    def lost(self, partitions: Sequence[int]) -> None:
        self._take_back(partitions)

    def _take_back(self, partitions: Sequence[int]) -> list[_Partition]:
        """Stop deciding. Requests that are open are left to the next owner."""
        with self._changed:
            taken = [self._owned.pop(number) for number in partitions if number in self._owned]
            for partition in taken:
                partition.closed = True
                for request in partition.gathering.open.values():
                    partition.next = min(partition.next, request.record.offset)
                    partition.unsettled.pop(request.record.offset, None)
        for reader in self._readers:
            for partition in taken:
                reader.remove(partition.number)
        return taken

    # The thread that reads requests.

    def _read_requests(self, feed: LeaseGroupFeed) -> None:
        checked_s = self._clock.monotonic_s()
        while not self._stopping.is_set() and self._failure is None:
            self._settle()
            now_s = self._clock.monotonic_s()
            if now_s - checked_s >= _CHECK_EVERY_S:
                checked_s = now_s
                if self._is_complete():
                    return
            room = self._gather.most - sum(len(each.unsettled) for each in self._owned.values())
            if room <= 0:  # the stream takes no verdicts at the moment
                self._stopping.wait(_SLICE_S)
                continue
            try:
                batches = feed.poll(min(room, _AT_ONCE), _SLICE_S)
            except OffsetOutOfRangeError as error:
                logger.warning("%s: requests expired before they were read: %s", self._gather.name, error)
                feed.seek(error.partition, error.start)
                continue
            except (BrokerUnavailableError, StreamError, StoreUnavailableError) as error:
                self._wait_after(error)
                continue
            self._problem = ""
            now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
            with self._changed:
                for batch in batches:
                    owned = self._owned.get(batch.partition)
                    if owned is None:
                        continue
                    for record in batch:
                        if owned.end is None or record.offset < owned.end:
                            self._take_request(owned, record, now_s, now_ms)
                    owned.next = batch.next

    def _wait_after(self, error: PenstockError) -> None:
        if not self._problem:
            logger.warning("%s: %s; retrying", self._gather.name, error)
        self._problem = str(error)
        self._stopping.wait(_AGAIN_S)

    def _finish_open(self, feed: LeaseGroupFeed) -> None:
        """Wait until the requests that are open have their verdicts, which takes at most the deadline."""
        until_s = self._clock.monotonic_s() + self._gather.within_s + 1.0
        while self._failure is None and self._clock.monotonic_s() < until_s:
            with self._changed:
                if not any(each.gathering.open for each in self._owned.values()):
                    return
            self._clock.sleep(0.002)

    def _is_complete(self) -> bool:
        """Whether a run with an `end` is done: every partition is at its end, those of other members included."""
        if self._gather.end is None or self._letters:
            return False
        return all(
            self._owned[each].is_at_end if each in self._owned else self._is_saved(each, end)
            for each, end in self._ends.items()
        )

    def _is_saved(self, partition: int, end: Pointer) -> bool:
        """Whether another member has reached this position."""
        checkpoint = self._store.store.load(self._key(partition))
        return checkpoint is not None and checkpoint.start >= end

    def _take_request(self, partition: _Partition, record: Record, now_s: float, now_ms: int) -> None:
        gather = self._gather
        redrive = redrive_of(record)
        if redrive is not None and not redrive.is_for(gather.group):
            self.counts.ignored += 1
            return
        partition.unsettled[record.offset] = None
        try:
            value = gather.requests.decode(record.value)
            request_id = _id_text(gather.request_id(value))
        except Exception as error:
            self._give_up(partition, record.offset, record, error)
            return
        arrived_ms = min(now_ms, now_ms if record.timestamp_ms is None else record.timestamp_ms)
        deadline_s = now_s + gather.within_s - (now_ms - arrived_ms) / 1000
        request = Request(request_id, record, value, arrived_ms, deadline_s, deadline_s <= now_s)
        earliest_s = partition.gathering.next_deadline_s
        if not partition.gathering.add_request(request):
            del partition.unsettled[record.offset]
            self.counts.ignored += 1
        elif (request.overdue or partition.gathering.is_ready(request_id)) and self._holds(partition):
            self._decide(partition, request)
        elif earliest_s is None or deadline_s < earliest_s:
            self._changed.notify_all()

    def _settle(self) -> None:
        """Note which verdicts are stored, and store dead letters."""
        while self._settled:
            partition, pointer, receipt = self._settled.popleft()
            if receipt.error is not None:
                raise receipt.error
            if pointer is not None:
                with self._changed:
                    partition.unsettled.pop(pointer, None)
                    partition.settled += 1
                    self.counts.succeeded += 1
                    partition.progressed_s = self._clock.monotonic_s()
        while self._letters:
            partition, pointer, letter = self._letters[0]
            if self._dead_letters is None:
                raise HandlerError(f"{self._gather.name}: {letter.error}")
            try:
                self._dead_letters.put([letter])
            except PenstockError as error:
                self._wait_after(error)
                return
            self._letters.popleft()
            if pointer is not None:
                with self._changed:
                    partition.unsettled.pop(pointer, None)
                    self.counts.exhausted += 1

    # The thread that saves positions, as the disk may take longer than a deadline.

    def _keep_saving(self) -> None:
        try:
            while not self._has_ended.wait(_SAVE_EVERY_S):
                with self._changed:
                    owned = list(self._owned.values())
                    for partition in owned:
                        for late in partition.gathering.expire(self._clock.monotonic_s()):
                            self._send_late(partition, late)
                for partition in owned:
                    if not partition.closed:
                        self._save(partition)
        except BaseException as error:
            self.fail(error)

    def _save(self, partition: _Partition) -> None:
        with self._saving:
            with self._changed:
                position = partition.position
            if position == partition.saved:
                return
            checkpoint = Checkpoint(
                position,
                position,
                processed=partition.judged,
                delivered=partition.settled,
                saved_ms=self._clock.wall_ms(),
            )
            try:
                self._store.store.save(partition.lease, self._key(partition.number), Change(checkpoint))
            except FencedError as error:
                logger.info("%s: %s", self._gather.name, error)
            except StoreUnavailableError as error:
                logger.warning("%s: its position is not saved: %s", self._gather.name, error)
            else:
                partition.saved = position

    # The threads that read answers, and the one that watches deadlines.

    def take_answer(self, name: str | None, topic: Topic[Any], records: Iterable[Record]) -> None:
        """Add answers to their requests. Called by the readers."""
        with self._changed:
            for record in records:
                partition = self._owned.get(record.partition)
                if partition is None:
                    continue
                late = self._add_answer(partition, name, topic, record)
                if late is not None:
                    self._send_late(partition, late)

    def fail(self, error: BaseException) -> None:
        """End the consumer with this error."""
        self._failure = self._failure or error

    def _add_answer(
        self, partition: _Partition, name: str | None, topic: Topic[Any], record: Record
    ) -> LateAnswer | None:
        gather = self._gather
        try:
            value = topic.decode(record.value)
            found = gather.answer_to(value)
            if name is None:
                found, name = _id_and_name(found, gather.expected)
            answer = Answer(_id_text(found), name, value, record, self._clock.monotonic_s())
        except Exception as error:
            self._give_up(partition, None, record, error)
            return None
        late = partition.gathering.add_answer(answer)
        if partition.gathering.is_ready(answer.request) and self._holds(partition):
            self._decide(partition, partition.gathering.open[answer.request])
        return late

    def _watch(self) -> None:
        try:
            with self._changed:
                while not self._has_ended.is_set():
                    now_s = self._clock.monotonic_s()
                    held = [each for each in self._owned.values() if self._holds(each)]
                    for partition in held:
                        for request in partition.gathering.due(now_s):
                            self._decide(partition, request)
                    next_s = [due_s for each in held if (due_s := each.gathering.next_deadline_s) is not None]
                    if len(held) < len(self._owned):
                        next_s.append(now_s + _SLICE_S)
                    wait_on(self._clock, self._changed, max(0.0, min(next_s) - now_s) if next_s else None)
        except BaseException as error:
            self.fail(error)

    def _holds(self, partition: _Partition) -> bool:
        """Whether no other member can have the partition yet. False after the process was suspended for too long, until
        the feed has noticed it."""
        return self._feed is not None and self._feed.holds(partition.number)

    def _decide(self, partition: _Partition, request: Request) -> None:
        """Send the verdict of a request. The caller holds the lock."""
        gather, gathering = self._gather, partition.gathering
        result = gathering.decide(request, self._clock.monotonic_s(), self._clock.wall_ms())
        partition.judged += 1
        try:
            value = gather.judge(request.value, result)
            if value is None:
                raise HandlerError(f"{gather.name} returned None: return the verdict of each request")
            made = gather.verdicts.new_record(
                value, request.id if gather.verdicts.key is None else None, partition=partition.number
            )
        except Exception as error:
            gathering.reopen(request)
            self._give_up(partition, request.record.offset, request.record, error)
            return
        headers = verdict_headers(request, result)
        record = NewRecord(made.topic, made.value, made.key, headers, made.timestamp_ms, made.partition)
        self._send(self._opened(self._verdicts), partition, request.record.offset, record)

    def _send_late(self, partition: _Partition, late: LateAnswer) -> None:
        if self._late is None or self._gather.late is None:
            return
        record = late.answer.record
        made = NewRecord(
            self._gather.late.name, record.value, record.key, late.headers(), record.timestamp_ms, partition.number
        )
        self._send(self._late, partition, None, made)

    def _send(self, to: TopicStream, partition: _Partition, pointer: Pointer | None, record: NewRecord) -> None:
        for receipt in to.append([record]):
            receipt.add_done_callback(lambda done: self._settled.append((partition, pointer, done)))

    def _give_up(self, partition: _Partition, pointer: Pointer | None, record: Record, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        now_ms = self._clock.wall_ms()
        failing = Failing(record.offset, 1, str(error), now_ms, now_ms)
        letter = dead_letter_of(self._gather, self._gather.group, record, error, trace, failing)
        self._letters.append((partition, pointer, letter))

    # Beginning.

    def _open_store(self) -> Opened:
        given = self._gather.checkpoints
        if given is None:
            return Opened(default_store(self._stream, in_the_stream=False), is_ours=True)
        if isinstance(given, str):
            return Opened(open_store(given, self._stream), is_ours=True)
        return Opened(given, is_ours=False)

    def _open(self, opened: contextlib.ExitStack) -> bool:
        """Open the topics, once they exist, and create those of the results. False when stopped first."""
        gather = self._gather
        partitions = self._provided(gather.requests, None)
        if partitions is None:
            return False
        others = [*gather.answers.values(), gather.verdicts, *([gather.late] if gather.late is not None else [])]
        for topic in others:
            there = self._provided(topic, partitions)
            if there is None:
                return False
            if there != partitions:
                raise ConfigError(
                    f"{gather.name}: topic {topic.name!r} has {there} partitions, and {gather.requests.name!r} has "
                    f"{partitions}: both need the same number, as answers and verdicts are in the partition of their "
                    "request"
                )

        def enter(topic: Topic[Any]) -> TopicStream:
            return opened.enter_context(contextlib.closing(self._stream.open_topic(topic.name)))

        self._requests, self._verdicts = enter(gather.requests), enter(gather.verdicts)
        self._late = None if gather.late is None else enter(gather.late)
        if gather.dead_letters is not None:
            self._dead_letters = open_dead_letters(gather.dead_letters, self._stream)
            if self._dead_letters is not gather.dead_letters:
                opened.enter_context(contextlib.closing(self._dead_letters))
        if (end := gather.end) is not None:
            requests = self._requests
            self._ends = {each: requests.locate(each, end) for each in requests.partitions()}
        for name, topic in gather.answers.items():
            self._readers.append(
                AnswerReader(enter(topic), functools.partial(self.take_answer, name, topic), self.fail)
            )
        return True

    def _provided(self, topic: Topic[Any], partitions: int | None) -> int | None:
        """How many partitions a topic has, once it exists; None when stopped first. A topic is created with the given
        number of partitions, or with its own, if it declares one."""
        while not self._stopping.is_set():
            try:
                return provide_topic(self._stream, topic.name, topic.partitions or partitions)
            except (BrokerUnavailableError, StreamError, UnknownTopicError) as error:
                self._wait_after(error)
        return None

    def _begun(self, number: int, lease: Lease) -> tuple[_Partition, int]:
        """A partition where its last owner left it, and from what time on answers and verdicts matter."""
        gather, requests = self._gather, self._opened(self._requests)
        checkpoint = self._store.store.load(self._key(number))
        start = requests.locate(number, gather.start) if checkpoint is None else checkpoint.start
        earliest, end = requests.span(number)
        start = min(max(start, earliest), end)
        times = [self._clock.wall_ms() if checkpoint is None else checkpoint.saved_ms]
        if start < end:
            first = requests.read(number, start, 1, 0.0)
            times += [each for each in first.timestamps() if each is not None]
        partition = _Partition(
            number,
            lease,
            Gathering(gather.expected, gather.keep_s, gather.most),
            start,
            self._ends.get(number),
            start if checkpoint is not None else -1,
            progressed_s=self._clock.monotonic_s(),
        )
        return partition, min(times) - round(gather.keep_s * 1000)

    def _restore(self, partition: _Partition, from_ms: int) -> tuple[list[LateAnswer], list[Pointer]]:
        """Read the verdicts, late answers and answers there are. Returns the answers that are late now, and where each
        topic of answers continues."""
        gathering, now_s = partition.gathering, self._clock.monotonic_s()
        outputs_from_ms = from_ms - round(self._gather.keep_s * 1000)
        for record in records_since(self._opened(self._verdicts), partition.number, outputs_from_ms):
            about = text_headers(record.headers)
            if REQUEST in about:
                missing = [name for name in about.get(MISSING, "").split(",") if name]
                gathering.remember(about[REQUEST], about.get(RESULT, ""), missing, now_s)
        if self._late is not None:
            for record in records_since(self._late, partition.number, outputs_from_ms):
                about = text_headers(record.headers)
                if ANSWER in about and REQUEST in about:
                    gathering.remember_late(about[REQUEST], about[ANSWER], about.get(RESULT, NO_REQUEST), now_s)
        late: list[LateAnswer] = []
        continues: list[Pointer] = []
        for reader, (name, topic) in zip(self._readers, self._gather.answers.items(), strict=True):
            read_to = None
            for record in records_since(reader.opened, partition.number, from_ms):
                read_to = record.offset + 1
                found = self._add_answer(partition, name, topic, record)
                late += [found] if found is not None else []
            if read_to is None:
                read_to = reader.opened.locate(partition.number, Position.at_time(max(0, from_ms)))
            continues.append(read_to)
        return late, continues

    def _key(self, partition: int) -> CheckpointKey:
        return CheckpointKey(self._gather.group, self._gather.requests.name, partition)

    @staticmethod
    def _opened(topic: TopicStream | None) -> TopicStream:
        assert topic is not None
        return topic


def _id_text(given: object) -> str:
    if isinstance(given, bytes):
        return given.decode()
    if given is None or given == "":
        raise HandlerError("the id of the request is missing")
    return str(given)


def _id_and_name(found: object, expected: Sequence[str]) -> tuple[object, str]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise HandlerError(f"answer_to returned {found!r}: return the id of the request and the name of the answer")
    if found[1] not in expected:
        raise HandlerError(f"an answer of {found[1]!r} is not expected: there are {', '.join(expected)}")
    return found[0], str(found[1])
