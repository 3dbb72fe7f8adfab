"""What the console's service gives out: pure data, ready to be shown, with nothing of the web in it.

Texts stand here as they are: a key with script tags in it is given with its script tags, and whoever shows it escapes
it. Facts that others share (lag, sizes, rates) are those of `penstock.observe.facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.model import Checkpoint, Happening, Lease, LetterState, Pointer
from penstock.observe.facts import GroupFacts, PipelineFacts, TopicFacts
from penstock.observe.pipelines import PipelineHappening
from penstock.streams.kafka.topics import ConfigValue

Decode = Literal["auto", "json", "text", "number", "hex", "base64", "msgpack", "avro"]
"""How bytes are shown. "auto" finds out what they look like; the others are tried, and fall back to hex."""

Isolation = Literal["committed", "uncommitted"]
Encoding = Literal["text", "json", "hex", "base64"]
"""How a person has written the bytes to produce."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who acts, for the audit log."""

    name: str
    """"local" without a login, else the login's name, or "token"."""
    address: str


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as a person can read them. Control characters, and marks that turn the direction of text, can be seen."""

    text: str
    form: str
    """json, text, number, hex, base64, null, empty, msgpack, avro, registry, ..."""
    is_cut: bool
    """Whether `text` is only the beginning."""
    size_bytes: int
    note: str | None = None
    """What else is to be said: the id of the schema, or why it could not be decoded as it was asked for."""


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """Which messages are wanted, from where on."""

    topic: str
    position: str = "latest-100"
    """latest-N: the newest N of all partitions; or what `Position.parse` takes: earliest, latest, an offset (42), a
    time (2026-11-15T08:00), an age (-15m), milliseconds since 1970."""
    partition: int | None = None
    limit: int = 100
    search: str = ""
    """Text that stands in the key, the value or a header, whatever its case."""
    expression: str = ""
    """A filter: see `penstock.console.filters`."""
    decode: Decode = "auto"
    cursor: str | None = None
    """Where a page before this one ended: `MessagePage.cursor` or `.before`. It wins over `position`."""
    isolation: Isolation = "committed"


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
    """The first hundred; of a message on its own, the first thousand."""
    size_bytes: int
    header_count: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages that match, oldest first by time, as far as they were looked for."""

    rows: tuple[MessageRow, ...]
    cursor: str | None
    """Goes on with newer messages; None at the present end."""
    before: str | None
    """Goes back to older ones; None at the beginning."""
    scanned: int
    """How many records were looked at."""
    is_complete: bool
    """Whether the page is full or the end was reached; if not, the search was stopped by its bounds: see `note`."""
    note: str | None = None
    """Where the search stopped and why, in a sentence, with what to do."""


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """One message, whole: its texts are cut at 1 MB only, JSON is indented."""

    row: MessageRow
    start: Pointer
    end: Pointer
    """What the partition holds now, to go to the message before or behind."""


@dataclass(frozen=True, slots=True)
class TopicDetail:
    facts: TopicFacts
    config: tuple[ConfigValue, ...]
    groups: tuple[GroupFacts, ...]
    """Those that read it."""
    problem: str | None = None
    """Why the broker could not be asked: what stands here is what was last known."""


@dataclass(frozen=True, slots=True)
class MemberFacts:
    id: str
    client_id: str
    host: str
    partitions: tuple[tuple[str, int], ...]
    """Topics and partitions that it has."""


@dataclass(frozen=True, slots=True)
class GroupDetail:
    facts: GroupFacts
    members: tuple[MemberFacts, ...]
    assignor: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """A group of the library, over all its partitions."""

    group: str
    store: str
    """The URL of the checkpoint store that knows it, without passwords."""
    topics: tuple[str, ...]
    partitions: int
    in_flight: int
    """Records that were read and are not finished."""
    failing: int
    """Of these, records that have failed and will be tried again."""
    processed: int
    delivered: int
    restarts: int
    saved_ms: int
    """When it last saved a checkpoint."""


@dataclass(frozen=True, slots=True)
class ConsumerPartition:
    """The checkpoint of a group on one partition."""

    topic: str
    partition: int
    checkpoint: Checkpoint
    lease: Lease | None
    """Who may write it."""
    in_flight: int
    finished_ahead: int
    """Records that are finished beyond the first that is not."""


@dataclass(frozen=True, slots=True)
class ConsumerDetail:
    facts: ConsumerFacts
    partitions: tuple[ConsumerPartition, ...]
    leases: tuple[Lease, ...]
    """The group's other leases: its members."""
    has_history: bool
    """Whether the store remembers what happened to each record: see `Service.history_of`."""


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter in a list."""

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


@dataclass(frozen=True, slots=True)
class LetterPage:
    rows: tuple[LetterRow, ...]
    after: str | None
    """Pass it as `after` for the next page; None: there is none."""


@dataclass(frozen=True, slots=True)
class LetterDetail:
    """One dead letter, whole."""

    row: LetterRow
    """With texts cut at 1 MB only."""
    headers: tuple[tuple[str, Shown], ...]
    traceback: str
    handler_version: str
    happenings: tuple[Happening, ...]
    """What happened to its record, where a checkpoint store remembers."""


@dataclass(frozen=True, slots=True)
class LetterErrors:
    """How often each kind of error stands among the letters that wait."""

    counts: tuple[tuple[str, int], ...]
    """Kinds of error with the number of letters, most first."""
    is_complete: bool
    """Whether all letters were counted; if not, only the first `counted` of them."""
    counted: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two letters differ."""

    path: str
    """Such as error, key, header.trace, value.customer.name."""
    left: str | None
    """None: it is not there at all."""
    right: str | None


@dataclass(frozen=True, slots=True)
class PipelineDetail:
    facts: PipelineFacts
    happenings: tuple[PipelineHappening, ...]
    """Newest first."""


Outcome = Literal["done", "failed", "under way", "unknown"]


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One change that somebody made, or tried to make."""

    id: str
    at_ms: int
    who: str
    address: str
    action: str
    """The name of the service's method: produce, create_topic, reset, ..."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome = "under way"
    """unknown: the console ended before it could tell."""
    text: str = ""
    """What came of it, or the error."""
    ended_ms: int | None = None
