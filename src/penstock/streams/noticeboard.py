"""A noticeboard: a small topic of one partition whose newest record of each key is what holds.

Everybody reads it as a whole, which takes milliseconds. Who changes it gets to see what stands there, and nobody else
can have changed it in between: all changes go through one transactional id, of which only the newest producer may
write, so that a change that was decided upon what is no longer so is refused by the broker. This is a true
compare-and-set on any log with transactions.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.abc import Feature, Streams
from penstock.errors import ConfigError, StreamError, TopicExistsError, UnknownTopicError
from penstock.model import NewRecord
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.transactions import OvertakenError, TransactionalProducer

Notices = dict[str, bytes]
Changes = Mapping[str, bytes | None]
"""What notices shall be; None where one shall go."""

_AT_ONCE: Final = 1_000
_WAIT_S: Final = 0.1
_TIMEOUT_S: Final = 30.0
_TRANSACTION_TIMEOUT_S: Final = 60.0
_ATTEMPTS: Final = 10
_FIRST_PAUSE_S: Final = 0.05
_in_memory = threading.Lock()


class Noticeboard:
    """The notices in one topic of a system of streams."""

    def __init__(self, streams: Streams, topic: str) -> None:
        self._streams = streams
        self.topic = topic

    def read(self) -> Notices:
        """What stands there now; nothing when there is no such topic yet."""
        stream = self._streams.stream(self.topic)
        try:
            stream.partitions()
            place, end = stream.span(0)
            notices: Notices = {}
            deadline_s = time.monotonic() + _TIMEOUT_S
            wait_s = 0.0
            while place < end:
                batch = stream.read(0, place, _AT_ONCE, wait_s)
                for record in batch.records:
                    _apply(notices, record.key, record.value)
                # Behind the last record is the mark of its transaction, for which nobody should wait.
                wait_s = _WAIT_S if batch.next == place else 0.0
                place = batch.next
                if place < end and time.monotonic() > deadline_s:
                    raise StreamError(
                        f"topic {self.topic!r} could not be read to its end within {_TIMEOUT_S:g} s: see that the "
                        "broker runs and can be reached"
                    )
            return notices
        except UnknownTopicError:
            return {}
        finally:
            stream.close()

    def change(self, decide: Callable[[Notices], Changes]) -> None:
        """Change what `decide` says when it is shown what stands there. All of it counts, at once, or nothing.

        While others change it, too, `decide` is asked again. What it raises is raised here, and nothing is changed.
        """
        if Feature.TRANSACTIONS in self._streams.features and isinstance(self._streams, Connection):
            self._streams.administration.provide(self.topic, 1, {"cleanup.policy": "compact"})
            self._change_by_transaction(self._streams, decide)
        elif Feature.DURABLE not in self._streams.features:  # nobody outside of this process can be in between
            with _in_memory:
                with contextlib.suppress(TopicExistsError):
                    self._streams.create_topic(self.topic, 1)
                self._append(decide(self.read()))
        else:
            raise ConfigError(f"{self._streams.url} cannot keep {self.topic!r}: it has no {Feature.TRANSACTIONS}")

    def _change_by_transaction(self, connection: Connection, decide: Callable[[Notices], Changes]) -> None:
        chance = random.Random()
        for attempt in range(_ATTEMPTS):
            try:
                self._try_to_change(connection, decide)
                return
            except OvertakenError as error:
                if attempt == _ATTEMPTS - 1:
                    raise StreamError(
                        f"topic {self.topic!r} is being changed by others all the time: try again later"
                    ) from error
            time.sleep(chance.uniform(0.5, 1.0) * _FIRST_PAUSE_S * 2**attempt)

    def _try_to_change(self, connection: Connection, decide: Callable[[Notices], Changes]) -> None:
        producer = TransactionalProducer(
            connection.bootstrap,
            connection.options,
            self.topic,
            timeout_s=_TIMEOUT_S,
            transaction_timeout_s=_TRANSACTION_TIMEOUT_S,
        )
        try:
            changes = decide(self.read())
            if not changes:
                return
            producer.begin()
            for key, value in changes.items():
                producer.produce(self.topic, value, key.encode(), 0)
            producer.commit()
        finally:
            producer.close()

    def _append(self, changes: Changes) -> None:
        stream = self._streams.stream(self.topic)
        records = [NewRecord(self.topic, value, key.encode(), partition=0) for key, value in changes.items()]
        for receipt in stream.append(records):
            receipt.result(_TIMEOUT_S)
        stream.close()


def _apply(notices: Notices, key: bytes | None, value: bytes | None) -> None:
    name = (key or b"").decode(errors="backslashreplace")
    if value is None:
        notices.pop(name, None)
    else:
        notices[name] = value
