"""What the console's service returns: pure data, ready to be shown, independent of the web.

Texts are unescaped: a key with script tags is returned with its script tags, and the page escapes it. Shared facts
(lag, sizes, rates) are those of `penstock.observe.facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.model import Checkpoint, HistoryEntry, Lease, LetterState, Pointer
from penstock.model.administration import ConfigValue, Member
from penstock.observe.facts import GroupFacts, PipelineFacts, TopicFacts
from penstock.observe.pipelines import PipelineEvent
from penstock.observe.programs import ProgramStatus, SupervisorFacts

Decode = Literal["auto", "json", "text", "number", "hex", "base64", "msgpack", "avro"]
"""How to show bytes. "auto" detects the format; the others are tried, and fall back to hex."""

Encoding = Literal["text", "json", "hex", "base64"]
"""How a person has written the bytes to produce."""


@dataclass(frozen=True, slots=True)
class Person:
    """The acting person, for the audit log."""

    name: str
    """"local" without a login, else the login's name, or "token"."""
    address: str


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The rows of an SQL query, as text."""

    columns: tuple[str, ...]
    numbers: frozenset[int]
    """The indexes of the columns that are numbers."""
    rows: list[tuple[str | None, ...]]
    is_cut: bool
    """Whether there are more rows."""
    records_read: int
    records_cached: int
    took_s: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes in readable form. Control characters and direction marks are made visible."""

    text: str
    form: str
    """json, text, number, hex, base64, null, empty, msgpack, avro, registry, ..."""
    is_cut: bool
    size_bytes: int
    note: str | None = None
    """A remark: the id of the schema, or why it could not be decoded as requested."""


@dataclass(frozen=True, slots=True)
class MessageQuery:
    topic: str
    position: str = "latest-100"
    """latest-N: the newest N of all partitions; or what `Position.parse` takes: earliest, latest, an offset (42), a
    time (2026-11-15T08:00), an age (-15m), milliseconds since 1970; or `offset:` and a pointer in the stream's own
    form."""
    partition: int | None = None
    limit: int = 100
    search: str = ""
    """Text in the key, the value or a header, case-insensitive."""
    expression: str = ""
    """A filter: see `penstock.console.messages.filters`."""
    decode: Decode = "auto"
    cursor: str | None = None
    """Where another page ended: `MessagePage.cursor` or `.before`. It overrides `position`."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message in a list: its texts are cut at 2 KB."""

    topic: str
    partition: int
    pointer: Pointer
    timestamp_ms: int | None
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    """The first hundred; of a single message, the first thousand."""
    size_bytes: int
    header_count: int


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Matching messages, oldest first by time, as far as the search went."""

    rows: tuple[MessageRow, ...]
    cursor: str | None
    """Continues with newer messages; None at the current end."""
    before: str | None
    """Goes back to older ones; None at the beginning."""
    scanned: int
    is_complete: bool
    """Whether the page is full or the end was reached; if not, the search hit its limits: see `note`."""
    note: str | None = None
    """Where the search stopped and why, in a sentence, with what to do."""


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """One message, whole: its texts are cut at 1 MB only, JSON is indented."""

    row: MessageRow
    start: Pointer
    end: Pointer
    """The partition's current offsets, to go to the previous or next message."""


@dataclass(frozen=True, slots=True)
class TopicDetail:
    facts: TopicFacts
    config: tuple[ConfigValue, ...]
    groups: tuple[GroupFacts, ...]
    """The groups that read it."""
    problem: str | None = None
    """Why the broker could not be asked: the facts are then the last known ones."""
    has_settings: bool = True
    """Whether the stream administers topics: if not, nothing is known of its settings, and none can be changed."""


@dataclass(frozen=True, slots=True)
class GroupDetail:
    facts: GroupFacts
    members: tuple[Member, ...]
    assignor: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """A group of the library, over all its partitions."""

    group: str
    store: str
    """The URL of its checkpoint store, without passwords."""
    topics: tuple[str, ...]
    partitions: int
    in_flight: int | None
    """Records that were read and are not finished. None: unknown, as pointers do not count records."""
    failing: int
    """How many of them have failed and will be retried."""
    processed: int
    delivered: int
    restarts: int
    saved_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerPartition:
    topic: str
    partition: int
    checkpoint: Checkpoint
    lease: Lease | None
    in_flight: int | None
    finished_ahead: int | None
    """Finished records beyond the first unfinished one."""


@dataclass(frozen=True, slots=True)
class ConsumerDetail:
    facts: ConsumerFacts
    partitions: tuple[ConsumerPartition, ...]
    leases: tuple[Lease, ...]
    """The group's other leases: its members."""
    has_history: bool
    """Whether the store keeps the history of each record: see `Service.history_of`."""


@dataclass(frozen=True, slots=True)
class LetterRow:
    id: str
    group: str
    topic: str
    partition: int
    pointer: Pointer
    timestamp_ms: int | None
    key: Shown
    value: Shown
    error: str
    error_kind: str
    attempts: int
    first_ms: int
    last_ms: int
    state: LetterState
    redrives: int
    handler: str
    pointer_text: str
    """The pointer as people know it."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    rows: tuple[LetterRow, ...]
    after: str | None
    """Pass it as `after` for the next page; None: there is none."""


@dataclass(frozen=True, slots=True)
class LetterDetail:
    row: LetterRow
    """With texts cut at 1 MB only."""
    headers: tuple[tuple[str, Shown], ...]
    traceback: str
    handler_version: str
    history: tuple[HistoryEntry, ...]
    """The history of its record, where a checkpoint store keeps one."""


@dataclass(frozen=True, slots=True)
class LetterErrors:
    """How often each kind of error occurs among the waiting letters."""

    counts: tuple[tuple[str, int], ...]
    """Kinds of error with their numbers of letters, most frequent first."""
    is_complete: bool
    """Whether all letters were counted; if not, only the first `counted` of them."""
    counted: int


@dataclass(frozen=True, slots=True)
class Difference:
    path: str
    """Such as error, key, header.trace, value.customer.name."""
    left: str | None
    """None: it does not exist."""
    right: str | None


@dataclass(frozen=True, slots=True)
class ProgramDetail:
    supervisor: SupervisorFacts
    status: ProgramStatus
    log: str
    """Its last lines."""


@dataclass(frozen=True, slots=True)
class PipelineDetail:
    facts: PipelineFacts
    events: tuple[PipelineEvent, ...]


Outcome = Literal["done", "failed", "under way", "unknown"]


@dataclass(frozen=True, slots=True)
class AuditLine:
    id: str
    at_ms: int
    who: str
    address: str
    action: str
    """The name of the service's method: produce, create_topic, reset, ..."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome = "under way"
    """unknown: the console ended before it could record it."""
    text: str = ""
    """The result, or the error."""
    ended_ms: int | None = None
