"""Everything the console knows and does, without a page around it.

Reading gives what is so, or what was last known and why there is no more. Changing takes the person who acts first,
goes through the gate (`penstock.console.gate`), and is written down. Methods may take seconds, and may be called from
any thread; what a user can solve is raised as a PenstockError, whose text is meant to be shown.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.abc import Clock
from penstock.console.audit import AuditLog
from penstock.console.consumers import Consumers
from penstock.console.filters import Filter
from penstock.console.gate import changing
from penstock.console.groups import Groups
from penstock.console.jobs import Job, Jobs
from penstock.console.lens import Lens
from penstock.console.letters import Letters
from penstock.console.link import Link
from penstock.console.messages import Messages
from penstock.console.outages import Outage, Outages
from penstock.console.schemas import Schemas
from penstock.console.sending import new_record, replayed, send
from penstock.console.tailing import Tail
from penstock.console.topics import Topics
from penstock.console.views import (
    AuditLine,
    ConsumerDetail,
    ConsumerFacts,
    Decode,
    Difference,
    Encoding,
    GroupDetail,
    Isolation,
    LetterDetail,
    LetterErrors,
    LetterPage,
    MessageDetail,
    MessagePage,
    MessageQuery,
    Person,
    PipelineDetail,
    TopicDetail,
)
from penstock.errors import ConfigError, PenstockError, PipelineError
from penstock.model import DeadLetter, Happening, LetterFilter, Pointer, Record
from penstock.model.clock import SystemClock
from penstock.observe.alerts import Alerting, AlertState, Mute, NotifierState, Rule
from penstock.observe.facts import LetterFacts, PipelineFacts, Snapshot
from penstock.observe.history import History
from penstock.observe.pipelines import happenings
from penstock.observe.place import HISTORY_FILE, RULES_FILE, state_folder
from penstock.observe.watching import Watch
from penstock.streams import Connection, connect
from penstock.streams.kafka.moves import Move
from penstock.streams.url import without_password

logger = logging.getLogger(__name__)

MOST_TAILS: Final = 100
_IDLE_TAIL_S: Final = 120.0
"""A tail that nobody has polled for so long belongs to a page that is gone."""


class Service:
    """What the console's pages call.

    `state` is the folder for what must outlive the console: history, audit log, alerts; by default beside an embedded
    log's records, or else in the working folder. `dead_letters`, `checkpoints` and `pipelines` say where those are
    where that cannot be guessed (see `observe.looking.Looker`). `rules` is the file of alerts, `registry` the URL of a
    schema registry.
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
        every_s: float = 5.0,
        rules: Path | None = None,
        registry: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = without_password(url)
        """Fit to be shown."""
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
        )
        self._outages = Outages()
        self._watch.listen(self._outages.heard)
        self._watch.listen(self._alerting.heard)
        self._messages = Messages(self._link, self._schemas, self._now)
        self._topics = Topics(self._link, self.snapshot, self.look_now)
        self._consumers = Consumers(self._link, checkpoints, self.snapshot, self.look_now)
        self._groups = Groups(self._link, self.snapshot, self.look_now, self._now, self._consumers.store_of)
        self._letters = Letters(self._link, dead_letters, self.snapshot, self.look_now, self._clock)
        self._jobs = Jobs(self._clock)
        self._tails: list[Tail] = []
        self._tails_lock = threading.Lock()

    @property
    def read_only(self) -> bool:
        """Whether it refuses every change. It is so from its beginning to its end."""
        return self._read_only

    @property
    def audit_log(self) -> AuditLog:
        return self._audit

    def start(self) -> None:
        """Begin to watch. A broker that is away is no error: it is looked for again and again."""
        self._watch.start()

    def close(self) -> None:
        """End everything: jobs in good order first."""
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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def snapshot(self) -> Snapshot:
        """What was last seen, at once."""
        return self._watch.latest

    def look_now(self) -> Snapshot:
        """What is so now; after some seconds without an answer, what was last seen."""
        return self._watch.look_now()

    def outage(self) -> Outage | None:
        """Since when the stream is away; None: it answers, or has not been asked yet."""
        return self._outages.now

    @property
    def is_known(self) -> bool:
        """Whether the stream has answered since the console was started. What is not known is not nothing."""
        return self._outages.is_known

    def series(self, kind: str, name: str, metric: str, since_ms: int, points: int = 300) -> list[tuple[int, float]]:
        """The past of a number: see `observe.history.METRICS`."""
        return self._history.series(kind, name, metric, since_ms, points)

    def topic(self, name: str) -> TopicDetail:
        return self._topics.detail(name)

    def messages(self, query: MessageQuery) -> MessagePage:
        """A page of messages. Bounded in records, bytes and time: it says where it stopped, and how to go on."""
        return self._messages.page(query)

    def message(
        self,
        topic: str,
        partition: int,
        pointer: Pointer,
        decode: Decode = "auto",
        isolation: Isolation = "committed",
    ) -> MessageDetail:
        """One message, whole, as far as a page can show it."""
        return self._messages.detail(topic, partition, pointer, decode, isolation)

    def record(self, topic: str, partition: int, pointer: Pointer, isolation: Isolation = "committed") -> Record:
        """One message as it is, for saving it to a file, or writing another one like it."""
        return self._messages.record(topic, partition, pointer, isolation)

    def tail(self, query: MessageQuery) -> Tail:
        """What comes to a topic from now on. Who opened it closes it; one that nobody polls is closed in the end."""
        tail = Tail(self._link, query, Lens(query, self._schemas, self._now()))
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

    def check_expression(self, expression: str) -> None:
        """FilterError, with the place of the mistake, when it cannot be understood."""
        if expression.strip():
            Filter(expression, self._now())

    def group(self, name: str) -> GroupDetail:
        return self._groups.detail(name)

    def consumers(self) -> list[ConsumerFacts]:
        """The groups of the library."""
        return self._consumers.all()

    def consumer(self, group: str) -> ConsumerDetail:
        return self._consumers.detail(group)

    def history_of(
        self, group: str, topic: str, partition: int, pointer: Pointer | None, limit: int = 200
    ) -> list[Happening]:
        """What happened to a record, or in a partition, oldest first."""
        return self._consumers.history(group, topic, partition, pointer, limit)

    def letter_places(self) -> list[LetterFacts]:
        return self._letters.places()

    def letters(self, spec: str, which: LetterFilter, limit: int = 100, after: str | None = None) -> LetterPage:
        return self._letters.page(spec, which, limit, after)

    def letter(self, spec: str, id: str) -> LetterDetail:
        return self._letters.detail(spec, id, self._happenings_of)

    def letter_record(self, spec: str, id: str) -> Record:
        """The record of a letter as it is, for saving it to a file."""
        return self._letters.letter(spec, id).record

    def letter_errors(self, spec: str) -> LetterErrors:
        return self._letters.errors(spec)

    def count_letters(self, spec: str, which: LetterFilter) -> int:
        """How many letters a redrive of these would send, as of now."""
        return self._letters.count(spec, which)

    def compare_letters(self, spec: str, left: str, right: str) -> list[Difference]:
        """Where two letters differ."""
        return self._letters.compare(spec, left, right)

    def pipelines(self) -> list[PipelineFacts]:
        found = self.snapshot().pipelines
        return [found[name] for name in sorted(found)]

    def pipeline(self, name: str) -> PipelineDetail:
        facts = self.snapshot().pipelines.get(name)
        if facts is None:
            there = ", ".join(sorted(self.snapshot().pipelines)) or "none"
            raise PipelineError(f"there is no pipeline {name!r} in the folder that is looked at; there are: {there}")
        return PipelineDetail(facts, tuple(happenings(Path(facts.folder))))

    def alerts(self) -> list[AlertState]:
        """What needs attention first comes first."""
        return self._alerting.states()

    def rules(self) -> list[Rule]:
        return self._alerting.rules()

    def mutes(self) -> list[Mute]:
        return self._alerting.mutes()

    def notifiers(self) -> list[NotifierState]:
        return self._alerting.notifiers()

    def alerting_problem(self) -> str | None:
        """What is wrong with alerting itself; None: nothing."""
        return self._alerting.problem

    def audit(self, limit: int = 200) -> list[AuditLine]:
        """The newest changes, newest first."""
        return self._audit.lines(limit)

    def jobs(self) -> list[Job]:
        """Redrives and discardings: those that run, and the last that have ended, newest first."""
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
        """Send a message, and give its partition and pointer. The encodings are how value and key are written here."""
        return send(self._link, new_record(topic, key, value, headers, partition, encoding, key_encoding))

    @changing
    def replay(
        self, by: Person, topic: str, partition: int, pointer: Pointer, to: str | None = None
    ) -> tuple[int, Pointer]:
        """Send a message once more, to its own topic or another. Gives the partition and pointer of the new one."""
        return send(self._link, replayed(self._messages.record(topic, partition, pointer, "committed"), to))

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
        """Change settings, None being the broker's default, and give a topic more partitions, so many in all."""
        self._topics.alter(name, changes or {}, partitions)

    @changing
    def delete_topic(self, by: Person, name: str) -> None:
        self._topics.delete(name)

    @changing
    def reset(
        self, by: Person, group: str, to: str, topics: Sequence[str] = (), partitions: Sequence[int] = ()
    ) -> list[Move]:
        """Move a group without members: see `plan_reset`."""
        return self._groups.reset(group, to, topics, partitions)

    @changing
    def delete_group(self, by: Person, group: str) -> None:
        """Forget a group without members, and what it has committed."""
        self._groups.delete(group)

    @changing
    def redrive(
        self,
        by: Person,
        spec: str,
        which: LetterFilter,
        *,
        to: str | None = None,
        rate_per_s: float | None = None,
        limit: int | None = None,
    ) -> Job:
        """Send letters again, in a thread. RedriveRunningError while somebody else does so at this place, here or in
        another process."""
        if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
            raise ConfigError(f"a rate is more than 0 in a second, and {rate_per_s} is not; leave it away for no limit")
        if limit is not None and limit < 1:
            raise ConfigError(f"a limit is a number of letters, and {limit} is not")
        job = Job(spec, by, self._clock.wall_ms(), to=to, rate_per_s=rate_per_s, limit=limit)
        self._jobs.start(job, self._letters.place_of(spec), lambda job: self._letters.redriving(job, which))
        return job

    @changing
    def cancel(self, by: Person, job_id: str) -> None:
        """End a redrive or a discarding in good order. What it has not come to stays waiting."""
        job = self._jobs.find(job_id)
        if job is None:
            raise ConfigError(f"there is no redrive {job_id!r} any more")
        job.cancel()

    @changing
    def discard(self, by: Person, spec: str, ids: Collection[str], reason: str) -> int:
        """Mark letters as not needed, and give how many were not before. The reason is kept in the audit log."""
        return self._letters.discard(spec, ids, reason)

    @changing
    def discard_matching(self, by: Person, spec: str, which: LetterFilter, reason: str) -> Job:
        """Mark all letters that match and wait as not needed, in a thread, however many they are."""
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
        """Tell nobody of alerts by this rule until then; a time that has passed: tell again from now on."""
        self._alerting.mute(name, until_ms, subject)

    @changing
    def test_notifier(self, by: Person, name: str) -> str | None:
        """Have a notifier say that it works. Gives what was wrong all the same."""
        return self._alerting.test(name)

    def _happenings_of(self, letter: DeadLetter) -> list[Happening]:
        """What a checkpoint store remembers of a letter's record. Nothing where none can be asked."""
        record = letter.record
        try:
            return self.history_of(letter.group, record.topic, record.partition, record.offset)
        except PenstockError as error:
            logger.info("what happened to dead letter %s is not known: %s", letter.id, error)
            return []

    def _watching_connection(self) -> Connection:
        """A connection for the watching thread alone, so that nobody who asks something waits for it."""
        return connect(self._given_url, client_id="penstock-watch", connect_timeout_s=5.0)

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._clock.wall_ms() / 1000, datetime.UTC)


def default_state(url: str) -> Path:
    """Where the console keeps what must outlive it, when nobody says."""
    folder = state_folder(url)
    if folder is not None:
        return folder
    raise ConfigError(f"the console cannot look into {without_password(url)}: give it log:FOLDER or kafka://HOST:PORT")
