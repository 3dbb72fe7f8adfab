"""Everything the console can read and do, without a page around it.

Reading returns the current facts, or the last known ones with the problem. A change takes the acting person first,
goes through the gate (`penstock.console.gate`), and is logged. Methods may take seconds, and may be called from any
thread; what a user can solve is raised as a PenstockError, whose text is meant to be shown.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from penstock.abc import Clock
from penstock.console.administration import Groups, Topics
from penstock.console.audit import AuditLog
from penstock.console.consumers import Consumers
from penstock.console.gate import changing
from penstock.console.jobs import Job, Jobs
from penstock.console.letters import Letters
from penstock.console.link import ANSWER_S, Link
from penstock.console.messages.filters import Filter
from penstock.console.messages.pages import MessageReader
from penstock.console.messages.sending import new_record, replayed, send
from penstock.console.messages.showing import Schemas
from penstock.console.messages.tailing import Tail
from penstock.console.messages.view_settings import ViewSettings
from penstock.console.queries import Queries, Query
from penstock.console.views import (
    AuditLine,
    ConsumerDetail,
    ConsumerFacts,
    Decode,
    Difference,
    Encoding,
    GroupDetail,
    LetterDetail,
    LetterErrors,
    LetterPage,
    MessageDetail,
    MessagePage,
    MessageQuery,
    Person,
    PipelineDetail,
    ProgramDetail,
    TopicDetail,
)
from penstock.errors import ConfigError, PenstockError, PipelineError
from penstock.model import DeadLetter, DeadLetterFilter, HistoryEntry, Pointer, Record
from penstock.model.clock import SystemClock
from penstock.observe.alerts import Alerting, AlertState, Mute, NotifierState, Rule
from penstock.observe.facts import LetterFacts, PipelineFacts, Snapshot
from penstock.observe.group_moves import Move, Moved
from penstock.observe.history.history import History
from penstock.observe.pipelines import pipeline_events
from penstock.observe.place import HISTORY_FILE, RULES_FILE, state_folder
from penstock.observe.programs import SupervisorFacts, find_supervisor, log_tail
from penstock.observe.watching import Watch
from penstock.serde import Topic
from penstock.streams import Connection
from penstock.streams.connecting import connect_for
from penstock.streams.url import without_password

logger = logging.getLogger(__name__)

MOST_TAILS: Final = 100
LOOK_S: Final = 60.0
_IDLE_TAIL_S: Final = 120.0
"""A tail that was not polled for this long belongs to a page that is gone."""


class Service:
    """What the console's pages call.

    `state` is the folder for what must survive a restart: history, audit log, alerts; by default beside an embedded
    log's records, or else in the working folder. `dead_letters`, `checkpoints` and `pipelines` say where those are,
    where that is not the default (see `observe.StreamObserver`), and `programs` where a supervisor keeps its logs.
    `rules` is the file of alert rules, `registry` the URL of a schema registry. `types` are topics whose types the SQL
    page uses, `sql_cache_bytes` the size of its cache (see `penstock.sql`).
    """

    def __init__(
        self,
        url: str,
        *,
        state: Path | None = None,
        read_only: bool = False,
        dead_letters: Sequence[str] = (),
        checkpoints: str | None = None,
        pipelines: Path | None = None,
        programs: Path | None = None,
        every_s: float = 5.0,
        rules: Path | None = None,
        registry: str | None = None,
        types: Sequence[Topic[Any]] = (),
        sql_cache_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = without_password(url)
        """Without a password, for display."""
        self._given_url = url
        self.state = state or default_state(url)
        self._read_only = read_only
        self._clock = clock or SystemClock()
        self._link = Link(url)
        self._schemas = None if registry is None else Schemas(registry)
        try:
            self.state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the console cannot keep its history in {self.state}: {error}") from error
        self._audit = AuditLog(self.state / "audit.jsonl", self._clock)
        self._history = History(self.state / HISTORY_FILE)
        self._alerting = Alerting(rules or self.state / RULES_FILE, stream=self.url)
        self._watch = Watch(
            self._watching_connection,
            self._history,
            every_s,
            checkpoints=checkpoints,
            dead_letters=dead_letters,
            pipelines=pipelines,
            timeout_s=ANSWER_S,
        )
        self._programs = programs
        self._outages = Outages()
        self._watch.listen(self._outages.heard)
        self._watch.listen(self._alerting.heard)
        self._messages = MessageReader(self._link, self._schemas, self._now)
        self._topics = Topics(self._link, self.snapshot, self.look_now)
        self._consumers = Consumers(self._link, checkpoints, self.snapshot, self.look_now)
        self._groups = Groups(self._link, self.snapshot, self.look_now, self._now, self._consumers.stores)
        self._letters = Letters(self._link, dead_letters, self.snapshot, self.look_now, self._clock)
        self._jobs = Jobs(self._clock)
        self._queries = Queries(self._link, url, types=types, registry=registry, cache_bytes=sql_cache_bytes)
        self._tails: list[Tail] = []
        self._tails_lock = threading.Lock()

    @property
    def read_only(self) -> bool:
        """Whether it refuses every change, for its whole life."""
        return self._read_only

    @property
    def audit_log(self) -> AuditLog:
        return self._audit

    def start(self) -> None:
        """Start watching. An unreachable broker is not an error: the console keeps trying."""
        self._watch.start()

    def close(self) -> None:
        """Close everything: jobs in good order first."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._link.close)
            stack.callback(self._history.close)
            stack.callback(self._alerting.close)
            stack.callback(self._consumers.close)
            stack.callback(self._letters.close)
            for tail in self._tails:
                stack.callback(tail.close)
            stack.callback(self._watch.close)
            stack.callback(self._jobs.close)
            stack.callback(self._queries.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def snapshot(self) -> Snapshot:
        """The latest snapshot, at once."""
        return self._watch.latest

    def look_now(self) -> Snapshot:
        """A new snapshot; after a minute without an answer, the latest."""
        return self._watch.look_now(LOOK_S)

    def outage(self) -> Outage | None:
        """Since when the stream is away; None: it answers, or has not been asked yet."""
        return self._outages.now

    @property
    def is_known(self) -> bool:
        """Whether the stream has answered since the console was started. Unknown is not empty."""
        return self._outages.is_known

    def series(self, kind: str, name: str, metric: str, since_ms: int, points: int = 300) -> list[tuple[int, float]]:
        return self._history.series(kind, name, metric, since_ms, points)

    def pointer_text(self, pointer: Pointer) -> str:
        """A pointer as people know it."""
        return self._link.pointer_text(pointer)

    def parse_pointer(self, text: str) -> Pointer:
        """The pointer that people write like this. Raises ConfigError and BrokerUnavailableError."""
        return self._link.connection().parse_pointer(text)

    def topic(self, name: str) -> TopicDetail:
        return self._topics.detail(name)

    def messages(self, query: MessageQuery) -> MessagePage:
        """A page of messages. Limited in records, bytes and time: it says where it stopped, and how to continue."""
        return self._messages.page(query)

    def message(self, topic: str, partition: int, pointer: Pointer, decode: Decode = "auto") -> MessageDetail:
        """One message, whole, as far as a page can show it."""
        return self._messages.detail(topic, partition, pointer, decode)

    def next_to(self, topic: str, partition: int, pointer: Pointer, way: Literal["newer", "older"]) -> Pointer | None:
        """The pointer of the message after this one, or before it; None when there is none."""
        return self._messages.next_to(topic, partition, pointer, way)

    def record(self, topic: str, partition: int, pointer: Pointer) -> Record:
        """One message as it is, for saving it to a file, or producing a similar one."""
        return self._messages.record(topic, partition, pointer)

    def tail(self, query: MessageQuery) -> Tail:
        """New messages of a topic. The caller closes it; one that is not polled is closed eventually."""
        tail = Tail(self._link, query, ViewSettings(query, self._schemas, self._now()))
        with self._tails_lock:
            stale = [each for each in self._tails if time.monotonic() - each.polled_s > _IDLE_TAIL_S]
            for each in stale:
                each.close()
            self._tails = [each for each in self._tails if not each.is_closed]
            if len(self._tails) >= MOST_TAILS:
                tail.close()
                raise ConfigError(f"{MOST_TAILS} tails are open already: close some first")
            self._tails.append(tail)
        return tail

    def open_query(self) -> Query:
        """Runs SQL queries for one page, one at a time, which closes it. Queries only read; they are limited in rows,
        memory, time and number."""
        return self._queries.open()

    def check_expression(self, expression: str) -> None:
        """Raise FilterError, with the position of the mistake, for a bad expression."""
        if expression.strip():
            Filter(expression, self._now())

    def group(self, name: str) -> GroupDetail:
        return self._groups.detail(name)

    def consumers(self) -> list[ConsumerFacts]:
        return self._consumers.all()

    def consumer(self, group: str) -> ConsumerDetail:
        return self._consumers.detail(group)

    def history_of(
        self, group: str, topic: str, partition: int, pointer: Pointer | None, limit: int = 200
    ) -> list[HistoryEntry]:
        """The history of a record or a partition, oldest first."""
        return self._consumers.history(group, topic, partition, pointer, limit)

    def dead_letter_stores(self) -> list[LetterFacts]:
        return self._letters.stores()

    def letters(self, spec: str, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> LetterPage:
        return self._letters.page(spec, which, limit, after)

    def letter(self, spec: str, id: str) -> LetterDetail:
        return self._letters.detail(spec, id, self._history_of_letter)

    def letter_record(self, spec: str, id: str) -> Record:
        """The record of a letter as it is, for saving it to a file."""
        return self._letters.letter(spec, id).record

    def letter_errors(self, spec: str) -> LetterErrors:
        return self._letters.errors(spec)

    def count_letters(self, spec: str, which: DeadLetterFilter) -> int:
        """How many letters a redrive of these would send now."""
        return self._letters.count(spec, which)

    def compare_letters(self, spec: str, left: str, right: str) -> list[Difference]:
        return self._letters.compare(spec, left, right)

    def pipelines(self) -> list[PipelineFacts]:
        found = self.snapshot().pipelines
        return [found[name] for name in sorted(found)]

    def pipeline(self, name: str) -> PipelineDetail:
        facts = self.snapshot().pipelines.get(name)
        if facts is None:
            there = ", ".join(sorted(self.snapshot().pipelines)) or "none"
            raise PipelineError(f"there is no pipeline {name!r} in the folder that is looked at; there are: {there}")
        return PipelineDetail(facts, tuple(pipeline_events(Path(facts.folder))))

    def programs(self) -> SupervisorFacts | None:
        """The supervised programs; None: no supervisor has run where the console looks."""
        return find_supervisor(self._programs)

    def program(self, name: str) -> ProgramDetail:
        """One of them, with the end of its log."""
        facts = self.programs()
        programs = [] if facts is None else facts.programs
        found = next((each for each in programs if each.name == name), None)
        if facts is None or found is None:
            there = ", ".join(each.name for each in programs) or "none"
            raise ConfigError(f"there is no program {name!r} of the supervisor that is looked at; there are: {there}")
        return ProgramDetail(facts, found, log_tail(facts, found))

    def alerts(self) -> list[AlertState]:
        """All alerts: what needs attention first comes first."""
        return self._alerting.states()

    def rules(self) -> list[Rule]:
        return self._alerting.rules()

    def mutes(self) -> list[Mute]:
        return self._alerting.mutes()

    def notifiers(self) -> list[NotifierState]:
        return self._alerting.notifiers()

    def alerting_problem(self) -> str | None:
        """What is wrong with alerting itself, or None."""
        return self._alerting.problem

    def audit(self, limit: int = 200) -> list[AuditLine]:
        return self._audit.lines(limit)

    def jobs(self) -> list[Job]:
        """Redrives and discardings: the running ones, and the last that have ended, newest first."""
        return self._jobs.all()

    def plan_reset(self, group: str, to: str, topics: Sequence[str] = (), partitions: Sequence[int] = ()) -> list[Move]:
        """What `reset` would do. Changes nothing."""
        return self._groups.plan(group, to, topics, partitions)

    @changing
    def produce(
        self,
        by: Person,
        topic: str,
        key: str | None,
        value: str | None,
        headers: Sequence[tuple[str, str]] = (),
        partition: int | None = None,
        encoding: Encoding = "text",
        key_encoding: Encoding = "text",
    ) -> tuple[int, Pointer]:
        """Send a message, and return its partition and offset. The encodings say how value and key are given."""
        return send(self._link, new_record(topic, key, value, headers, partition, encoding, key_encoding))

    @changing
    def replay(
        self, by: Person, topic: str, partition: int, pointer: Pointer, to: str | None = None
    ) -> tuple[int, Pointer]:
        """Replay a message to its own topic or another. Returns the partition and offset of the new one."""
        return send(self._link, replayed(self._messages.record(topic, partition, pointer), to))

    @changing
    def create_topic(
        self, by: Person, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> None:
        self._topics.create(name, partitions, config or {})

    @changing
    def alter_topic(
        self,
        by: Person,
        name: str,
        changes: Mapping[str, str | None] | None = None,
        partitions: int | None = None,
    ) -> None:
        """Change settings (None: the broker's default), and the total number of partitions."""
        self._topics.alter(name, changes or {}, partitions)

    @changing
    def delete_topic(self, by: Person, name: str) -> None:
        self._topics.delete(name)

    @changing
    def reset(
        self, by: Person, group: str, to: str, topics: Sequence[str] = (), partitions: Sequence[int] = ()
    ) -> Moved:
        """Move a group without members, where its progress is kept: see `plan_reset`."""
        return self._groups.reset(group, to, topics, partitions)

    @changing
    def delete_group(self, by: Person, group: str) -> str:
        """Delete a group without members: its checkpoints and committed offsets. Returns where they were."""
        return self._groups.delete(group)

    @changing
    def redrive(
        self,
        by: Person,
        spec: str,
        which: DeadLetterFilter,
        *,
        to: str | None = None,
        rate_per_s: float | None = None,
        limit: int | None = None,
    ) -> Job:
        """Send letters again, in a thread. Raises RedriveRunningError while another redrive runs at this store, here
        or in another process."""
        if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
            raise ConfigError(f"rate {rate_per_s} must be positive; omit it for no limit")
        if limit is not None and limit < 1:
            raise ConfigError(f"limit {limit} must be an integer >= 1")
        job = Job(spec, by, self._clock.wall_ms(), to=to, rate_per_s=rate_per_s, limit=limit)
        self._jobs.start(job, self._letters.place_of(spec), lambda job: self._letters.redriving(job, which))
        return job

    @changing
    def cancel(self, by: Person, job_id: str) -> None:
        """End a redrive or a discarding in good order. Its remaining letters stay waiting."""
        job = self._jobs.find(job_id)
        if job is None:
            raise ConfigError(f"redrive {job_id!r} no longer exists")
        job.cancel()

    @changing
    def discard(self, by: Person, spec: str, ids: Collection[str], reason: str) -> int:
        """Mark letters as not needed, and return how many were changed. The reason goes into the audit log."""
        return self._letters.discard(spec, ids, reason)

    @changing
    def discard_matching(self, by: Person, spec: str, which: DeadLetterFilter, reason: str) -> Job:
        """Mark all matching letters that wait as not needed, in a thread."""
        job = Job(spec, by, self._clock.wall_ms(), kind="discard")
        self._jobs.start(job, self._letters.place_of(spec), lambda job: self._letters.discarding(job, which, reason))
        return job

    @changing
    def add_rule(self, by: Person, rule: Rule, replace: bool = False) -> None:
        self._alerting.add_rule(rule, replace=replace)

    @changing
    def remove_rule(self, by: Person, name: str) -> None:
        self._alerting.remove_rule(name)

    @changing
    def mute(self, by: Person, name: str, until_ms: int, subject: str = "*") -> None:
        """Send nothing about this rule's alerts until then. A time in the past ends the mute."""
        self._alerting.mute(name, until_ms, subject)

    @changing
    def test_notifier(self, by: Person, name: str) -> str | None:
        """Send a test message through a notifier. Returns partial problems."""
        return self._alerting.test(name)

    def _history_of_letter(self, letter: DeadLetter) -> list[HistoryEntry]:
        """The history of a letter's record in a checkpoint store. Empty when no store can be asked."""
        record = letter.record
        try:
            return self.history_of(letter.group, record.topic, record.partition, record.offset)
        except PenstockError as error:
            logger.info("the history of dead letter %s is unknown: %s", letter.id, error)
            return []

    def _watching_connection(self) -> Connection:
        """A connection for the watching thread alone, so that requests do not wait for it."""
        return connect_for(self._given_url, client_id="penstock-watch", connect_timeout_s=ANSWER_S)

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._clock.wall_ms() / 1000, datetime.UTC)


def default_state(url: str) -> Path:
    folder = state_folder(url)
    if folder is not None:
        return folder
    raise ConfigError(f"the console does not support {without_password(url)}: use log:FOLDER or kafka://HOST:PORT")


@dataclass(frozen=True, slots=True)
class Outage:
    since_ms: int
    """When the first request failed."""
    known_ms: int | None
    """When it last answered; None: not since the console was started, so nothing is known."""


class Outages:
    """Follows the snapshots of a watch."""

    def __init__(self) -> None:
        self._known_ms: int | None = None
        self._now: Outage | None = None

    @property
    def now(self) -> Outage | None:
        """Since when and why the stream does not answer. None while it answers, and before it was asked."""
        return self._now

    @property
    def is_known(self) -> bool:
        """Whether the stream has ever answered: until then, empty facts mean nothing."""
        return self._known_ms is not None

    def heard(self, snapshot: Snapshot) -> None:
        if snapshot.problem is None:
            self._known_ms, self._now = snapshot.at_ms, None
        elif self._now is None:
            self._now = Outage(snapshot.at_ms, self._known_ms)
