"""A small topic of one partition, in which the newest record of each key is its value.

Clients read it as a whole, which takes milliseconds. A change is a compare-and-set: all changes use one transactional
id, so a producer that decided on outdated values is fenced, and the broker refuses its change.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.abc import Feature, HasAdmin, Stream, Transactional
from penstock.errors import ConfigError, OvertakenError, StreamError, UnknownTopicError
from penstock.model import NewRecord
from penstock.model.retry import Retry
from penstock.streams.capability import capability
from penstock.streams.declared import provide_topic

Values = dict[str, bytes]
Changes = Mapping[str, bytes | None]
"""New values; None deletes a key."""

_AT_ONCE: Final = 1_000
_WAIT_S: Final = 0.1
_TIMEOUT_S: Final = 30.0
_TRANSACTION_TIMEOUT_S: Final = 60.0
_ATTEMPTS: Final = 10
_AGAIN: Final = Retry(_ATTEMPTS, first_delay_s=0.05)
_in_memory = threading.Lock()


class KeyValueTopic:
    """The keys and values of one topic."""

    def __init__(self, stream: Stream, topic: str) -> None:
        self._stream = stream
        self.topic = topic

    def read(self) -> Values:
        """All values; none if the topic does not exist yet."""
        opened = self._stream.open_topic(self.topic)
        with contextlib.suppress(UnknownTopicError), contextlib.closing(opened):
            opened.partitions()
            place, end = opened.span(0)
            values: Values = {}
            deadline_s = time.monotonic() + _TIMEOUT_S
            wait_s = 0.0
            while place < end:
                batch = opened.read(0, place, _AT_ONCE, wait_s)
                for record in batch.records:
                    _apply(values, record.key, record.value)
                # The last record is followed by its transaction's marker, which needs no wait.
                wait_s = _WAIT_S if batch.next == place else 0.0
                place = batch.next
                if place < end and time.monotonic() > deadline_s:
                    raise StreamError(
                        f"topic {self.topic!r} could not be read to its end within {_TIMEOUT_S:g} s: check that the "
                        "broker runs and can be reached"
                    )
            return values
        return {}

    @property
    def can_change(self) -> bool:
        """Whether the stream has what `change` needs."""
        return capability(self._stream, Transactional) is not None or Feature.DURABLE not in self._stream.features

    def change(self, decide: Callable[[Values], Changes]) -> None:
        """Apply the changes that `decide` returns for the current values, atomically.

        If another client makes a change at the same time, `decide` is called again. If it raises, nothing is changed.
        """
        transactional = capability(self._stream, Transactional)
        if transactional is not None:
            self._provide()
            self._change_by_transaction(transactional, decide)
        elif Feature.DURABLE not in self._stream.features:  # only this process can change it
            with _in_memory:
                self._provide()
                self._append(decide(self.read()))
        else:
            raise ConfigError(f"{self._stream.url} cannot keep {self.topic!r}: it has no {Feature.TRANSACTIONS}")

    def _change_by_transaction(self, stream: Transactional, decide: Callable[[Values], Changes]) -> None:
        for attempt, delay_s in enumerate(_AGAIN.delays_s(), start=1):
            try:
                self._try_to_change(stream, decide)
                return
            except OvertakenError as error:
                if attempt == _ATTEMPTS:
                    raise StreamError(
                        f"topic {self.topic!r} is being changed by other clients all the time: try again later"
                    ) from error
            time.sleep(delay_s)

    def _try_to_change(self, stream: Transactional, decide: Callable[[Values], Changes]) -> None:
        with contextlib.closing(
            stream.transactional(self.topic, timeout_s=_TIMEOUT_S, transaction_timeout_s=_TRANSACTION_TIMEOUT_S)
        ) as producer:
            changes = decide(self.read())
            if not changes:
                return
            producer.begin()
            for key, value in changes.items():
                producer.produce(self.topic, value, key.encode(), 0)
            producer.commit()

    def _provide(self) -> None:
        administered = capability(self._stream, HasAdmin)
        if administered is not None:
            administered.admin().provide(self.topic, 1, {"cleanup.policy": "compact"})
        else:
            provide_topic(self._stream, self.topic, 1)

    def _append(self, changes: Changes) -> None:
        records = [NewRecord(self.topic, value, key.encode(), partition=0) for key, value in changes.items()]
        with contextlib.closing(self._stream.open_topic(self.topic)) as opened:
            for receipt in opened.append(records):
                receipt.result(_TIMEOUT_S)


def _apply(values: Values, key: bytes | None, value: bytes | None) -> None:
    name = (key or b"").decode(errors="backslashreplace")
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value
