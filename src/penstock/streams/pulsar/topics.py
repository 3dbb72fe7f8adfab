"""Topics of Pulsar: their partitions, what each holds, and how long it is kept.

A topic without partitions has partition 0 here. Pulsar keeps records in ledgers of BookKeeper, and removes whole
ledgers, the oldest first. By default it removes those that no subscription waits for: so topics that are created here
get a retention of their own.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.errors import InvalidTopicError, StreamError, TopicExistsError, UnknownTopicError
from penstock.model import Pointer
from penstock.streams.pulsar.client import PulsarClient
from penstock.streams.pulsar.messages import entry_of, index_of, ledger_of, pointer
from penstock.streams.pulsar.settings import UNLIMITED, PulsarSettings
from penstock.streams.pulsar.web import CONFLICT, NOT_FOUND, PulsarWebError

logger = logging.getLogger(__name__)

PARTITION_MARK: Final = "-partition-"
_CHUNKS_APART: Final = 1_000
"""How far back the first chunk of a message is looked for: those of several producers may be mixed."""
_PARTITION: Final = re.compile(rf"{PARTITION_MARK}\d+$", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartitionLedgers:
    """The ledgers of a partition at one moment."""

    ledgers: dict[int, int]
    """The entries of each ledger, by its id, the oldest first."""
    end: Pointer
    size_bytes: int
    entries: int
    is_compacted: bool

    @property
    def first(self) -> Pointer:
        return pointer(next(iter(self.ledgers), ledger_of(self.end)), 0)

    def has(self, ledger: int) -> bool:
        """Whether nothing from this ledger on was removed: ledgers are removed from the oldest on."""
        return bool(self.ledgers) and next(iter(self.ledgers)) <= ledger

    def follows(self, place: Pointer, ledger: int) -> bool:
        """Whether no entry is between `place` and `ledger`. Of the entry of `place`, everything was read."""
        after = pointer(ledger_of(place), entry_of(place) + bool(index_of(place)))
        return not any(after < pointer(each, count) for each, count in self.ledgers.items() if each < ledger and count)


class PulsarTopic:
    """A topic of a namespace, by the web service."""

    def __init__(self, topic: str, client: PulsarClient, settings: PulsarSettings) -> None:
        if _PARTITION.search(topic):
            raise InvalidTopicError(f"{topic!r} names a partition of Pulsar: open the topic, and choose its partition")
        self.topic = topic
        self._client = client
        self._web = client.web
        self._settings = settings
        self._path = f"{client.path}/{quote(topic, safe='')}"

    def partitions(self) -> int | None:
        """How many partitions the topic has; 0 for a topic without partitions, None if there is no such topic."""
        found = self._web.find(f"{self._path}/partitions?checkAllowAutoCreation=false")
        if found is None:
            return None
        count = int(found["partitions"])
        if count == 0 and self._web.find(f"{self._path}/internalStats") is None:
            return None
        return count

    def count(self) -> int:
        """The number of partitions, 1 for a topic without partitions. UnknownTopicError if the topic does not exist."""
        partitions = self.partitions()
        if partitions is None:
            raise self.unknown()
        return max(1, partitions)

    def create(self, partitions: int) -> None:
        try:
            if partitions == 1:
                self._web.ask("PUT", self._path)
            else:
                self._web.ask("PUT", f"{self._path}/partitions", partitions)
        except PulsarWebError as error:
            if error.status == CONFLICT:
                raise TopicExistsError(f"topic {self.topic!r} exists already in {self._client.where}") from error
            if error.status == NOT_FOUND:
                raise UnknownTopicError(
                    f"{self._client.where}: {error.reason}. Create the namespace with `pulsar-admin namespaces create "
                    f"{self._client.tenant}/{self._client.namespace}`"
                ) from error
            raise
        self._keep_records()

    def delete(self) -> None:
        partitions = self.partitions()
        if partitions is None:
            raise self.unknown()
        try:
            self._web.ask("DELETE", f"{self._path}{'/partitions' if partitions else ''}?force=true")
        except PulsarWebError as error:
            if error.status != NOT_FOUND:
                raise
            raise self.unknown() from error

    def state(self, partition: int, name: str) -> PartitionLedgers:
        """The ledgers of partition `name`."""
        path = f"{self._client.path}/{quote(name, safe='')}"
        found = self._web.find(f"{path}/internalStats")
        if found is None:
            raise self.unknown(partition)
        ledgers = {int(each["ledgerId"]): int(each["entries"]) for each in found["ledgers"]}
        ledger, _, entry = found["lastConfirmedEntry"].partition(":")
        end = pointer(int(ledger), int(entry) + 1)
        if ledgers:
            newest = max(ledgers)
            # The entries of a ledger are told when it is closed.
            ledgers[newest] = max(
                ledgers[newest], int(found["currentLedgerEntries"]) if found["state"] != "ClosedLedger" else 0
            )
            end = max(end, pointer(newest, ledgers[newest]))
        return PartitionLedgers(
            ledgers=dict(sorted(ledgers.items())),
            end=end,
            size_bytes=int(found["totalSize"]),
            entries=int(found["numberOfEntries"]),
            is_compacted=int((found.get("compactedLedger") or {}).get("ledgerId", -1)) >= 0,
        )

    def message_at(self, name: str, time_ms: int) -> Pointer:
        """The first entry that was published then or later, or the end of the partition."""
        found = self._web.get(f"{self._client.path}/{quote(name, safe='')}/messageid/{time_ms}")
        return pointer(int(found["ledgerId"]), max(0, int(found["entryId"])))

    def chunk_start(self, name: str, place: Pointer) -> Pointer | None:
        """The first entry of a message in chunks, one of which is at this place; None if there is none.

        Pulsar gives a message that was sent in chunks the id of its last one, and reads it only from its first one on.
        """
        ledger, entry = ledger_of(place), entry_of(place)
        chunk = self._chunk(name, ledger, entry)
        if chunk is None:
            return None
        message, number = chunk
        for before in range(entry - 1, max(-1, entry - _CHUNKS_APART), -1):
            if number == 0:
                break
            found = self._chunk(name, ledger, before)
            if found is not None and found[0] == message:
                entry, number = before, found[1]
        return pointer(ledger, entry) if number == 0 else None

    def _chunk(self, name: str, ledger: int, entry: int) -> tuple[str, int] | None:
        headers = self._web.headers(f"{self._client.path}/{quote(name, safe='')}/ledger/{ledger}/entry/{entry}")
        named = {each.lower(): text for each, text in headers.items()}
        number = named.get("x-pulsar-chunk-id", "")
        return (named.get("x-pulsar-uuid", ""), int(number)) if number.isdecimal() else None

    def retention(self) -> tuple[int, int]:
        """The minutes and the MB up to which Pulsar keeps records that no subscription waits for. -1: without limit."""
        found = self._web.find(f"{self._path}/retention?applied=true") or {}
        return int(found.get("retentionTimeInMinutes", 0)), int(found.get("retentionSizeInMB", 0))

    def deduplicates(self) -> bool:
        return bool(self._web.find(f"{self._path}/deduplicationEnabled?applied=true"))

    def unknown(self, partition: int = 0) -> UnknownTopicError:
        if partition:
            return UnknownTopicError(
                f"topic {self.topic!r} in {self._client.where} has no partition {partition}, or does not exist"
            )
        return UnknownTopicError(
            f"there is no topic {self.topic!r} in {self._client.where}. It is created by the first record, or with "
            "`penstock topics create`"
        )

    def _keep_records(self) -> None:
        """Give a new topic its policies."""
        settings = self._settings
        wanted = {
            "retentionTimeInMinutes": settings.retention_minutes,
            "retentionSizeInMB": settings.retention_mb,
        }
        try:
            if self.retention() != (settings.retention_minutes, settings.retention_mb):
                self._web.ask("POST", f"{self._path}/retention", wanted)
            if settings.deduplicate and not self.deduplicates():
                self._web.ask("POST", f"{self._path}/deduplicationEnabled", True)
        except PulsarWebError as error:
            self.delete()
            remedy = (
                "raise max_bytes, or lower the backlog quota of the namespace"
                if "backlog quota" in error.reason.lower()
                else "set topicLevelPoliciesEnabled=true in the configuration of the brokers"
            )
            raise StreamError(
                f"topic {self.topic!r} was not created in {self._client.where}, because its policies were refused, and "
                f"its records might be deleted before they are read: {error.reason}. Create it with pulsar-admin, or "
                f"{remedy}"
            ) from error


def partition_name(topic: str, partition: int, partitions: int) -> str:
    """The name of a partition in Pulsar. `partitions` is 0 for a topic without them."""
    return f"{topic}{PARTITION_MARK}{partition}" if partitions else topic


def topic_names(answers: Any) -> list[str]:
    """The topics of a listing, by their own names; without partitions, and those that Pulsar uses for itself."""
    names = {_PARTITION.sub("", unquote(str(each).rpartition("/")[2])) for each in answers}
    return sorted(name for name in names if not name.startswith("__"))


def keeps_everything(retention: tuple[int, int]) -> bool:
    return retention == (UNLIMITED, UNLIMITED)
