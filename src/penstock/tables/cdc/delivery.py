"""Store records together with the state of the capture that produced them.

On a stream with transactions, both are one transaction, and a second capture with the same name fences the first. On
any other stream, the state is saved to a checkpoint store after the records are acknowledged: a crash in between
delivers these records again.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from penstock.abc import CheckpointStore, Feature, HasAdmin, Stream, Transaction, Transactional
from penstock.checkpoints.opening import open_store
from penstock.consuming.defaults import default_store
from penstock.errors import ConfigError, DeliveryError, NotAllowedError, OvertakenError, TransactionLostError
from penstock.model import Change, Checkpoint, CheckpointKey, Guarantee, Headers, Lease, NewRecord, Receipt
from penstock.streams import Connection
from penstock.streams.capability import capability
from penstock.streams.declared import provide_topic
from penstock.streams.key_value_topic import KeyValueTopic
from penstock.tables.cdc.records import BY_KEY, EVERY_PARTITION, Row
from penstock.tables.cdc.reports import REPORTS, REQUESTS
from penstock.tables.cdc.source import Saved

logger = logging.getLogger(__name__)

OWNER: Final = "owner"
"""The key under which the newest capture with a name leaves its id."""
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(16 * 1024 * 1024),
    # Whoever reads the topic may be away for a week until it misses a deletion; Kafka's default is a day.
    "delete.retention.ms": str(7 * 24 * 60 * 60 * 1000),
}
_STATE_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # The position is written with every batch: small segments are compacted soon, so a restart reads little.
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
NO_HEADERS: Final[Mapping[int, Headers]] = {}
_TIMEOUT_S: Final = 30.0
_TRANSACTION_TIMEOUT_S: Final = 60.0


CAPTURES: Final = "cdc"
"""The kind of deliveries of captures. Deliveries of another kind do not share their names."""


def state_topic(name: str, kind: str = CAPTURES) -> str:
    """The topic with the state of a capture, in a stream with transactions."""
    return f"penstock.{kind}.{name}"


def _provide_reports(stream: Stream) -> bool:
    try:
        _provide(stream, REPORTS, 1, _STATE_SETTINGS)
        _provide(stream, REQUESTS, 1, _STATE_SETTINGS)
    except NotAllowedError as error:
        logger.warning("penstock lag, alerts and the console will not see this capture: %s", error)
        return False
    return True


def forget_capture(connection: Connection, name: str) -> None:
    """Delete the state and the reports of a capture that does not run. Raises ConfigError if there are none."""
    topics = set(connection.topics())
    known = KeyValueTopic(connection, REPORTS).read() if REPORTS in topics else {}
    if state_topic(name) not in topics and name not in known:
        raise ConfigError(
            f"{connection.url} has no capture of the name {name!r}; `penstock lag` shows those that it has"
        )
    if state_topic(name) in topics:
        connection.admin().delete(state_topic(name))
    if name in known:
        connection.send(REPORTS, None, key=name).result(_TIMEOUT_S)


def _history_settings(history_s: float) -> dict[str, str]:
    return {"min.compaction.lag.ms": str(round(history_s * 1000))}


def _keep_history(stream: Stream, topics: Iterable[str], history_s: float) -> None:
    administered = capability(stream, HasAdmin)
    if administered is None:
        raise ConfigError(f"history={history_s:g} s: {stream.url} does not compact topics by age: omit it")
    admin = administered.admin()
    wanted = _history_settings(history_s)
    for topic in topics:
        known = {each.name: each.value for each in admin.config(topic)}
        if any(known.get(name) != value for name, value in wanted.items()):
            admin.change_config(topic, wanted)


class Delivery(Protocol):
    """Stores the batches of one capture. Used by one thread. After an error, close it and open another."""

    guarantee: Guarantee
    has_reports: bool
    """Whether the stream has a place for reports of captures, and for requests to them."""

    def load(self) -> Saved:
        """The saved state."""

    def deliver(
        self,
        records: Sequence[Row],
        state: Mapping[str, bytes | None],
        report: bytes | None = None,
        *,
        headers: Mapping[int, Headers] = NO_HEADERS,
    ) -> None:
        """Return once records, state and the capture's report are stored. An empty report removes the last one.
        `headers` are those of records, by their place.

        Raises OvertakenError or FencedError if a newer capture runs.
        """

    def close(self) -> None: ...


def open_delivery(
    stream: Stream,
    name: str,
    topics: Iterable[str],
    partitions: int,
    checkpoints: str | None,
    owner: str | None,
    *,
    kind: str = CAPTURES,
    history_s: float | None = None,
) -> tuple[Delivery, str]:
    """A delivery that is the newest of this kind and name, and its owner id.

    `topics` are created, compacted; others may be delivered to. With `owner`, that of an earlier delivery of this
    process: OvertakenError if another process has taken over. `history_s`: how long replaced records are kept, also in
    topics that exist.
    """
    settings = TOPIC_SETTINGS if history_s is None else {**TOPIC_SETTINGS, **_history_settings(history_s)}
    counts = {topic: _provide(stream, topic, partitions, settings) for topic in topics}
    if history_s is not None:
        _keep_history(stream, counts, history_s)
    transactional = capability(stream, Transactional)
    if transactional is not None:
        if checkpoints is not None:
            raise ConfigError(
                f"checkpoints={checkpoints!r}: {stream.url} keeps the position itself, with the rows: omit it"
            )
        return _open_transactional(stream, transactional, name, counts, owner, kind)
    return _open_checkpointed(stream, name, counts, checkpoints, kind), ""


def _open_transactional(
    stream: Stream, transactional: Transactional, name: str, counts: Mapping[str, int], owner: str | None, kind: str
) -> tuple[Delivery, str]:
    topic = state_topic(name, kind)
    _provide(stream, topic, 1, _STATE_SETTINGS)
    has_reports = kind == CAPTURES and _provide_reports(stream)
    state = KeyValueTopic(stream, topic)
    if owner is not None and state.read().get(OWNER, b"").decode() not in ("", owner):
        raise OvertakenError(f"another process with the name {name!r} has taken over: this one stops")
    producer = transactional.transactional(
        f"penstock-{kind}-{name}", timeout_s=_TIMEOUT_S, transaction_timeout_s=_TRANSACTION_TIMEOUT_S
    )
    delivery = TransactionalDelivery(name, state, producer, counts, has_reports=has_reports)
    own = owner or uuid.uuid4().hex
    try:
        delivery.deliver([], {OWNER: own.encode()})
    except BaseException:
        delivery.close()
        raise
    return delivery, own


class TransactionalDelivery:
    """Records and state in one transaction of the stream."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        name: str,
        state: KeyValueTopic,
        producer: Transaction,
        counts: Mapping[str, int],
        *,
        has_reports: bool = False,
    ) -> None:
        self.has_reports = has_reports
        self._name = name
        self._state = state
        self._producer = producer
        self._counts = counts

    def load(self) -> Saved:
        return self._state.read()

    def deliver(
        self,
        records: Sequence[Row],
        state: Mapping[str, bytes | None],
        report: bytes | None = None,
        *,
        headers: Mapping[int, Headers] = NO_HEADERS,
    ) -> None:
        producer = self._producer
        produce = producer.produce
        try:
            producer.begin()
            if headers:
                producer.append(_new_records(records, headers))
                records = ()
            for topic, value, key, partition in records:
                if partition == EVERY_PARTITION:
                    for each in range(self._counts[topic]):
                        produce(topic, value, key, each)
                else:
                    produce(topic, value, key, partition)
            for name, new in state.items():
                produce(self._state.topic, new, name.encode(), 0)
            if report is not None:
                produce(REPORTS, report or None, self._name.encode(), 0)
            producer.commit()
        except OvertakenError as error:
            raise OvertakenError(
                f"another process with the name {self._name!r} has taken over, or a transaction took longer than "
                f"{_TRANSACTION_TIMEOUT_S:g} s: {error}"
            ) from error
        except TransactionLostError as error:
            if error.must_abort and "MSG_SIZE_TOO_LARGE" in str(error).upper().replace(" ", "_"):
                raise ConfigError(f"a row is larger than its topic allows: raise max.message.bytes: {error}") from error
            raise

    def close(self) -> None:
        self._producer.close()


def _open_checkpointed(
    stream: Stream, name: str, counts: Mapping[str, int], checkpoints: str | None, kind: str
) -> CheckpointedDelivery:
    store = default_store(stream, in_the_stream=False) if checkpoints is None else open_store(checkpoints, stream)
    try:
        if Feature.STATE not in store.features:
            raise ConfigError(
                f"{type(store).__name__} cannot keep the position of a capture: it has no {Feature.STATE}; pass "
                "checkpoints='sqlite:./checkpoints.db'"
            )
        key = CheckpointKey(f"penstock-{kind}-{name}", name, 0)
        lease: Lease | None = None
        while lease is None:  # ends: only a capture that starts at the same moment changes it in between
            seen = next((each for each in store.leases(key.group) if each.name == key.lease_name), None)
            lease = store.claim(key.group, key.lease_name, uuid.uuid4().hex, seen)
    except BaseException:
        store.close()
        raise
    return CheckpointedDelivery(stream, store, key, lease, counts)


class CheckpointedDelivery:
    """Records first, then the state in a checkpoint store."""

    guarantee = Guarantee.AT_LEAST_ONCE
    has_reports = False

    def __init__(
        self, stream: Stream, store: CheckpointStore, key: CheckpointKey, lease: Lease, counts: Mapping[str, int]
    ) -> None:
        self._store = store
        self._key = key
        self._lease = lease
        self._counts = counts
        self._stream = stream
        self._topics = {topic: stream.open_topic(topic) for topic in counts}

    def load(self) -> Saved:
        return {name.decode(): value for name, value in self._store.state(self._key).items()}

    def deliver(
        self,
        records: Sequence[Row],
        state: Mapping[str, bytes | None],
        report: bytes | None = None,
        *,
        headers: Mapping[int, Headers] = NO_HEADERS,
    ) -> None:
        assert report is None, "there is no place for it"
        receipts: list[Receipt] = []
        for run in _runs(_new_records(records, headers)):
            topic = run[0].topic
            if topic not in self._topics:
                self._topics[topic] = self._stream.open_topic(topic)
            receipts += self._topics[topic].append([each for record in run for each in self._copies(record)])
        for receipt in receipts:
            try:
                receipt.result(_TIMEOUT_S)
            except TimeoutError as error:
                raise DeliveryError(
                    f"topic {receipt.topic!r} acknowledged nothing for {_TIMEOUT_S:g} s: check that the stream runs",
                    retriable=True,
                ) from error
        saved = {name.encode(): value for name, value in state.items()}
        self._store.save(self._lease, self._key, Change(Checkpoint(0, 0), state=saved))

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._store.close)
            for topic in self._topics.values():
                closing.callback(topic.close)
            closing.callback(self._store.release, self._lease)

    def _copies(self, record: NewRecord) -> list[NewRecord]:
        if record.partition != EVERY_PARTITION:
            return [record]
        count = self._counts[record.topic]
        parts: list[int | None] = [None] if count == 1 else list(range(count))
        return [replace(record, partition=part) for part in parts]


def _new_records(records: Sequence[Row], headers: Mapping[int, Headers]) -> Iterator[NewRecord]:
    for place, (topic, value, key, partition) in enumerate(records):
        there = None if partition == BY_KEY else partition
        yield NewRecord(topic, value, key, headers.get(place, ()), partition=there)


def _runs(records: Iterable[NewRecord]) -> Iterable[list[NewRecord]]:
    """Records of one topic that follow each other."""
    run: list[NewRecord] = []
    for record in records:
        if run and run[0].topic != record.topic:
            yield run
            run = []
        run.append(record)
    if run:
        yield run


def _provide(stream: Stream, topic: str, partitions: int, settings: Mapping[str, str]) -> int:
    administered = capability(stream, HasAdmin)
    if administered is None:
        return provide_topic(stream, topic, partitions)
    return administered.admin().provide(topic, partitions, settings)
