"""Channels with one defect each, on top of those in memory, and on ZeroMQ where a second process is needed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.abc import Channel, Feature, Features
from penstock.channels import open_channel
from penstock.channels.memory import AnsweringMemoryChannel, MemoryChannel, MemoryChannelSettings
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, StreamError
from penstock.model import NewRecord, Record
from penstock.testing.conformance.channels import port_to_bind, port_to_connect
from penstock.testing.conformance.outages import UNAVAILABLE

ANSWER_S: Final = 1.0
SMALL: Final = 50
LONG_S: Final = 4.0
"""Longer than the patience of the cases in these tests."""


class Lossy(MemoryChannel):
    """Without a defect. The folder's name is the channel's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name)


class SmallLossy(MemoryChannel):
    """Without a defect."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name, MemoryChannelSettings(buffer=SMALL))


class Answering(AnsweringMemoryChannel):
    """Without a defect."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name, MemoryChannelSettings(answers=True, answer_timeout_s=ANSWER_S))


class LosesOne(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([*records[:50], *records[51:]])


class RepeatsOne(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([*records, *records[50:51]])


class Reverses(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send(records[::-1])


class HasOneOffset(Lossy):
    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        return [replace(record, offset=7) for record in super().listen(limit, wait_s)]


class HasAnotherName(Lossy):
    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        return [replace(record, topic="other") for record in super().listen(limit, wait_s)]


class StripsValues(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, value=(record.value or b"").rstrip(b"\n")) for record in records])


class SpellsNull(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, value=b"null" if record.value is None else record.value) for record in records])


class LosesKeys(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, key=record.key or None) for record in records])


class LosesHeaders(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, headers=record.headers[:2]) for record in records])


class LosesTimes(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send([replace(record, timestamp_ms=None) for record in records])


class RefusesKeys(Lossy):
    features: ClassVar[Features] = frozenset({Feature.LOSS_COUNT})

    def send(self, records: Sequence[NewRecord]) -> None:
        if any(record.key for record in records):
            raise ConfigError("this channel has no keys")
        super().send(records)


class IgnoresTheLimit(Lossy):
    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        return super().listen(limit + 1, wait_s)


class WaitsTooLong(Lossy):
    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        if wait_s > 1:
            threading.Event().wait(min(wait_s, LONG_S))
        return super().listen(limit, min(wait_s, 0.1))


class DoesNotWait(Lossy):
    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        return super().listen(limit, min(wait_s, 0.1))


class HasNoBuffer(Lossy):
    """Takes only what comes while somebody listens."""

    is_listening = threading.Event()

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        self.is_listening.set()
        try:
            return super().listen(limit, wait_s)
        finally:
            self.is_listening.clear()

    def send(self, records: Sequence[NewRecord]) -> None:
        if self.is_listening.is_set() or (records[0].value or b"").startswith(b"probe"):
            super().send(records)


class WaitsForNothing(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        if not records:
            threading.Event().wait(LONG_S)
        super().send(records)


class TakesFiveHundred(Lossy):
    def send(self, records: Sequence[NewRecord]) -> None:
        super().send(records[:500])


class HearsOneSender(Lossy):
    first: ClassVar[dict[str, object]] = {}

    def send(self, records: Sequence[NewRecord]) -> None:
        if self.first.setdefault(self.name, self) is self:
            super().send(records)


class Unbounded(Lossy):
    """Given where a listener with little room is asked for."""

    def __init__(self, folder: Path) -> None:
        MemoryChannel.__init__(self, folder.name, MemoryChannelSettings(buffer=1_000_000))


class CountsTooFew(SmallLossy):
    @property
    def lost(self) -> int:
        return super().lost // 2


class CountsTooMany(Lossy):
    @property
    def lost(self) -> int:
        return next(self._buffer._offsets)


class HasABadName(Lossy):
    @property
    def name(self) -> str:
        return "udp://239.1.1.1"


class PromisesAnswers(Lossy):
    features: ClassVar[Features] = Lossy.features | {Feature.ANSWERS}


class SleepsWhenClosed(Lossy):
    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        if wait_s > 1:
            threading.Event().wait(min(wait_s, LONG_S))
        return super().listen(limit, wait_s)


class IsUsedWhenClosed(Lossy):
    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        try:
            return super().listen(limit, wait_s)
        except ConnectionClosedError:
            if wait_s > 1:
                raise
            return []

    def send(self, records: Sequence[NewRecord]) -> None:
        try:
            super().send(records)
        except ConnectionClosedError:
            return


class KeepsItsAddress(Lossy):
    def close(self) -> None:
        self._buffer.close()


class StandIn:
    """Sends without being a channel."""

    def __init__(self, folder: Path) -> None:
        self._channel = Lossy(folder)
        self.send = self._channel.send
        self.close = self._channel.close


class ReturnsEarly(Answering):
    def acknowledge(self, records: Sequence[Record]) -> None:
        for record in records:
            request = self._requests._requests.get(record.offset)
            if request is not None:
                request.left = 1
        super().acknowledge(records)


class LosesTheReason(Answering):
    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        super().refuse(records, "no", again=again)


class IsAlwaysRetriable(Answering):
    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        super().refuse(records, reason, again=True)


class ForgetsOneRefusal(Answering):
    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        if len(records) == 1 and reason == "no":
            self.acknowledge(records)
        else:
            super().refuse(records, reason, again=again)


class WaitsForEver(AnsweringMemoryChannel):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name, MemoryChannelSettings(answers=True, answer_timeout_s=LONG_S * 10))


class TakesLateAnswers(Answering):
    """An answer that is too late counts for the next record."""

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        records = super().listen(limit, wait_s)
        for record in records:
            if (record.value or b"").startswith(b"case") and b" 1 " in (record.value or b""):
                self.acknowledge([record])
                threading.Event().wait(0.1)  # until the sender has it
        return records


class AnswersAllAlike(Answering):
    """What is said of one record is said of all that wait."""

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        super().refuse(
            [replace(records[0], offset=each) for each in list(self._requests._requests)], reason, again=again
        )


class Swallows(Answering):
    """Does not tell the sender that there was no answer."""

    def send(self, records: Sequence[NewRecord]) -> None:
        try:
            super().send(records)
        except BrokerUnavailableError:
            return


Defective = Callable[[Path], Channel]


class OnZmq:
    """A channel on ZeroMQ, without a defect."""

    settings: ClassVar[str] = "pattern=pipeline"
    is_bound: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        port = port_to_bind(folder) if self.is_bound else port_to_connect(folder)
        self._channel: Any = open_channel(
            f"zmq+tcp://127.0.0.1:{port}/ticks?send_timeout_s=0.5&answer_timeout_s={ANSWER_S}&linger_s=0&heartbeat_s=1&"
            + self.settings
        )
        self.name: str = self._channel.name
        self.features: Features = self._channel.features

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        records: Sequence[Record] = self._channel.listen(limit, wait_s)
        return records

    def send(self, records: Sequence[NewRecord]) -> None:
        self._channel.send(records)

    def close(self) -> None:
        self._channel.close()


class Pusher(OnZmq):
    """Without a defect."""


class Puller(OnZmq):
    """Without a defect."""

    is_bound = True


class Publisher(OnZmq):
    """Without a defect."""

    settings = "pattern=pubsub&wait_for_listener_s=0"
    is_bound = True


class Subscriber(OnZmq):
    """Without a defect."""

    settings = "pattern=pubsub"


class Asking(OnZmq):
    """Without a defect."""

    settings = "pattern=request"


class Listening(OnZmq):
    """Without a defect."""

    settings = "pattern=request"
    is_bound = True

    def acknowledge(self, records: Sequence[Record]) -> None:
        self._channel.acknowledge(records)

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        self._channel.refuse(records, reason, again=again)


class SwallowsWhenKilled(Asking):
    def send(self, records: Sequence[NewRecord]) -> None:
        try:
            self._channel.send(records)
        except BrokerUnavailableError:
            return


class AcknowledgesAtOnce(Listening):
    """Says that a record is stored before anybody has it."""

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        records = super().listen(limit, wait_s)
        self._channel.acknowledge(records)
        if records:
            threading.Event().wait(0.1)
        return records


class TellsItsProcess(Asking):
    """Without a defect."""

    def send(self, records: Sequence[NewRecord]) -> None:
        self._channel.send([replace(record, headers=(("pid", b"%d" % os.getpid()),)) for record in records])


class NeedsALivingSender(Listening):
    def acknowledge(self, records: Sequence[Record]) -> None:
        for record in records:
            state = Path(f"/proc/{int(record.headers[0][1] or b'')}/stat")
            if not state.exists() or " Z " in state.read_text():
                raise StreamError("the sender is gone")
        self._channel.acknowledge(records)


class PusherThatTellsItsProcess(Pusher):
    """Without a defect."""

    def send(self, records: Sequence[NewRecord]) -> None:
        self._channel.send([replace(record, headers=(("pid", b"%d" % os.getpid()),)) for record in records])


class HearsTheFirstSender(Puller):
    first: bytes | None = None

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        records = super().listen(limit, min(wait_s, 0.1))
        for record in records:
            self.first = self.first or record.headers[0][1]
        return [record for record in records if record.headers[0][1] == self.first]


class ListensOnce(Puller):
    """Only the first process that listens hears anything."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._first = folder / "first-listener"

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        if not self._first.exists():
            self._first.write_text(str(os.getpid()))
        if self._first.read_text() != str(os.getpid()):
            raise BrokerUnavailableError("another process has listened before")
        return super().listen(limit, wait_s)


CUT: Final = threading.Event()
"""Set once connections were cut."""


class StaysBroken(Pusher):
    def send(self, records: Sequence[NewRecord]) -> None:
        if CUT.is_set():
            raise BrokerUnavailableError("the connection was lost")
        self._channel.send(records)


class Blocks(Pusher):
    def send(self, records: Sequence[NewRecord]) -> None:
        try:
            self._channel.send(records)
        except UNAVAILABLE:
            threading.Event().wait(LONG_S)
            raise


class NeedsAFastNetwork(Subscriber):
    """Drops what is older than it should be."""

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        records = super().listen(limit, min(wait_s, 0.1))
        return [record for record in records if time.time() * 1000 - (record.timestamp_ms or 0) < 90]


FROZEN: Final = threading.Event()
"""Set while the network hangs."""


class HangsWithTheNetwork(Pusher):
    def send(self, records: Sequence[NewRecord]) -> None:
        if FROZEN.is_set():
            threading.Event().wait(LONG_S)
        self._channel.send(records)
