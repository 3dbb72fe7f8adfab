"""The suite for channels: a listening and a sending side, in this process and in others that are killed.

Either side may be a stand-in, where the channel works in one direction only: an object with `listen` and `close`, or
with `send` and `close`, that uses another client or raw packets. A listening stand-in for a channel with answers has
`acknowledge` and `refuse`, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
import unittest
from typing import Any, Final

from penstock.abc import Acknowledging, Channel, CountingLosses, Feature, Features
from penstock.errors import ConfigError, ConnectionClosedError, RecordTooLargeError
from penstock.model import Headers, NewRecord, Record, is_topic_name
from penstock.testing.conformance.channels.answers import ChannelAnswerCases
from penstock.testing.conformance.channels.recovery import ChannelNetworkCases, ChannelRecoveryCases
from penstock.testing.conformance.channels.suite import (
    BRIEF_S,
    COME_S,
    LARGE_BYTES,
    PROBE_S,
    Listener,
    Message,
    NumberOf,
    Sender,
    plain_message,
    plain_number,
    port_to_bind,
    port_to_connect,
    succeeds,
)
from penstock.testing.conformance.outages import UNAVAILABLE
from penstock.testing.conformance.suite import Factory, collect, lacks, needs

__all__ = ["ChannelCases", "channel", "port_to_bind", "port_to_connect"]

FLOOD: Final = 20_000
"""So many records do not fit into the buffer of a listener that was opened with little room."""
STAMP_MS: Final = 1_700_000_000_123


class ChannelCases(ChannelNetworkCases, ChannelAnswerCases, ChannelRecoveryCases):
    """What every channel promises: what is sent while somebody listens arrives, as far as the transport carries it."""

    def test_what_is_sent_while_somebody_listens_arrives_once(self) -> None:
        listener, sender = self.connected()
        numbers = self.passed_numbers(listener, sender, range(100), "records that are sent while somebody listens")
        assert sorted(numbers) == list(range(100)), f"records 0 to 99 were sent, and {sorted(numbers)} came"
        self.check_nothing_comes(listener, "each record was sent once")

    def test_records_of_one_sender_arrive_in_order(self) -> None:
        if not self.ordered:
            raise unittest.SkipTest("does not apply: the channel does not keep the order")
        listener, sender = self.connected()
        for start in range(0, 100, 20):
            numbers = self.passed_numbers(listener, sender, range(start, start + 20), "records in order")
            assert numbers == list(range(start, start + 20)), f"records from {start} on arrived in the order {numbers}"

    def test_records_carry_the_name_of_the_channel_and_offsets_that_differ(self) -> None:
        listener, sender = self.connected()
        records: list[Record] = []
        for _ in range(2):
            records += self.passed(listener, sender, [self.made(number) for number in range(20)], "records")
        offsets = [record.offset for record in records]
        assert len(set(offsets)) == len(offsets), f"{len(offsets)} records have the offsets {sorted(offsets)}"
        if isinstance(listener, Channel):
            places = {(record.topic, record.partition) for record in records}
            assert places == {(listener.name, 0)}, f"records of channel {listener.name} are from {places}"

    def test_values_arrive_as_they_were(self) -> None:
        self.carries_any_bytes()
        listener, sender = self.connected()
        for value in (b"", b"\x00", bytes(range(256)), b"text\r\nin lines\n", b"x" * self.large_bytes):
            sending = self.put_records(sender, [NewRecord("channel", value)])
            found = self.take_other(listener, f"a value of {len(value)} bytes").value
            self.sent(sending)
            assert found == value, f"the value {value[:300]!r} arrived as {(found or b'')[:300]!r}"

    def test_a_null_value_arrives_as_null_or_empty(self) -> None:
        self.carries_any_bytes()
        listener, sender = self.connected()
        sending = self.put_records(sender, [NewRecord("channel", None)])
        found = self.take_other(listener, "a null value").value
        self.sent(sending)
        assert not found, f"a null value arrived as {found!r}"

    def test_a_value_that_is_too_large_is_refused_and_others_pass(self) -> None:
        if self.too_large_bytes is None:
            raise unittest.SkipTest("does not apply: no too_large_bytes= was given")
        listener, sender = self.connected()
        large = NewRecord("channel", b"x" * self.too_large_bytes)
        with self.expect(RecordTooLargeError, f"sending {self.too_large_bytes} bytes"):
            self.sent(self.put_records(sender, [self.made(0), large]))
        self.check_nothing_comes(listener, "one record of the call was too large")
        self.join(listener, sender, "records pass after one that was too large")

    @needs(Feature.KEYS)
    def test_keys_arrive_as_they_were(self) -> None:
        listener, sender = self.connected()
        keys = [None, b"k", b"", bytes(range(256))]
        records = [NewRecord("channel", self.made(number).value, key) for number, key in enumerate(keys)]
        came = self.passed(listener, sender, records, "records with keys")
        arrived = {self.number_of(record): record.key for record in came}
        assert arrived == dict(enumerate(keys)), f"the keys {keys} arrived as {arrived}"

    @needs(Feature.HEADERS)
    def test_headers_arrive_as_they_were(self) -> None:
        listener, sender = self.connected()
        headers: Headers = (("one", b"1"), ("bytes", bytes(range(256))), ("empty", b""))
        made = self.made(0)
        sent = NewRecord("channel", made.value, made.key, headers)
        [record] = self.passed(listener, sender, [sent], "a record with headers")
        assert sorted(record.headers) == sorted(headers), f"the headers {headers} arrived as {record.headers}"

    def test_times_arrive_as_they_were(self) -> None:
        if not self.timestamps:
            raise unittest.SkipTest("does not apply: the channel does not carry timestamps")
        listener, sender = self.connected()
        made = self.made(0)
        sent = NewRecord("channel", made.value, made.key, timestamp_ms=STAMP_MS)
        [record] = self.passed(listener, sender, [sent], "a record with a time")
        assert record.timestamp_ms == STAMP_MS, f"the time {STAMP_MS} arrived as {record.timestamp_ms}"

    def test_what_the_transport_has_no_place_for_is_dropped(self) -> None:
        if {Feature.KEYS, Feature.HEADERS} <= self.features:
            raise unittest.SkipTest("does not apply: the channel has keys and headers")
        listener, sender = self.connected()
        made = self.made(0)
        sent = NewRecord("channel", made.value, made.key or b"k", (("h", b"1"),), STAMP_MS)
        self.passed(listener, sender, [sent], "a record with key and headers, on a channel without them")

    def test_listen_returns_at_most_the_limit_and_the_rest_later(self) -> None:
        listener, sender = self.connected()
        sending = self.put(sender, range(20))
        numbers: list[int] = []
        deadline_s = time.monotonic() + COME_S
        while len(numbers) < 20:  # ends: at the latest with the deadline
            assert time.monotonic() < deadline_s, f"of 20 records, taken 3 at a time, {numbers} came"
            numbers += self.numbers_of(self.take_once(listener, 3, 1.0))
        self.sent(sending)
        assert sorted(numbers) == list(range(20)), f"records 0 to 19, taken 3 at a time, came as {sorted(numbers)}"

    def test_listen_returns_as_soon_as_there_is_a_record(self) -> None:
        listener, sender = self.connected()
        waiting = self.in_background(self.take_once, listener, 100, COME_S * 4)
        sending = self.put(sender, [0])
        records = self.result_of(waiting, "a waiting listen ends when a record arrives", COME_S)
        self.sent(sending)
        assert self.numbers_of(records) == [0], f"{self.shown(records)} came instead of record 0"

    def test_listen_without_records_ends_once_the_wait_is_over(self) -> None:
        listener, _ = self.connected()
        for wait_s in (0.0, BRIEF_S):
            listening = self.in_background(self.take_once, listener, 1, wait_s)
            began_s = time.monotonic()
            records = self.result_of(listening, f"a listen that was to wait {wait_s:g} s ends", COME_S)
            waited_s = time.monotonic() - began_s
            assert not records, f"nothing was sent, and yet {records} came"
            assert waited_s >= wait_s / 2, f"a listen that was to wait {wait_s:g} s gave up after {waited_s:.3f} s"

    @lacks(Feature.ANSWERS)
    def test_what_arrives_between_two_calls_of_listen_waits(self) -> None:
        listener, sender = self.connected()
        for start in range(0, 50, 10):
            self.sent(self.put(sender, range(start, start + 10)))
        numbers = self.numbers_of(self.take(listener, 50, "records that were sent between two calls of listen"))
        assert sorted(numbers) == list(range(50)), f"records 0 to 49 were sent, and {sorted(numbers)} came"

    def test_nothing_to_send_is_sent_at_once(self) -> None:
        sender = self.open_sender()
        self.sent(self.put(sender, []), "a send of no records returns")

    def test_many_records_of_one_call_arrive(self) -> None:
        listener, sender = self.connected()
        numbers = self.passed_numbers(listener, sender, range(1000), "a thousand records of one call")
        missing = set(range(1000)).difference(numbers)
        assert not missing, f"of a thousand records of one call, {len(missing)} did not arrive"

    def test_the_records_of_several_senders_arrive(self) -> None:
        listener, first = self.connected()
        second = self.open_sender()
        self.join(listener, second, "the records of a second sender arrive")
        sendings = [self.put(first, range(50)), self.put(second, range(50, 100)), self.put(first, range(100, 150))]
        numbers = self.numbers_of(self.take(listener, 150, "the records of two senders and three threads"))
        for sending in sendings:
            self.sent(sending)
        assert sorted(numbers) == list(range(150)), f"records 0 to 149 were sent, and {sorted(numbers)} came"

    @needs(Feature.LOSS_COUNT)
    def test_a_buffer_with_little_room_is_bounded_and_what_is_lost_is_counted(self) -> None:
        if self.limited_factory is None:
            raise unittest.SkipTest("does not apply: no limited= was given, which opens a listener with little room")
        listener, sender = self.connected(self.limited_factory)
        lost_before = listener.lost
        flood = self.in_background(self._flood, sender)
        handed_over = self.result_of(flood, "a flood of records ends", COME_S * 2)
        marks: set[int] = set()
        numbers: set[int] = set()
        deadline_s = time.monotonic() + COME_S
        while not marks:  # ends: at the latest with the deadline
            assert time.monotonic() < deadline_s, "nothing arrives any more after a flood of records"
            number = FLOOD + self.rng.randrange(FLOOD)
            succeeds(sender.send, [self.made(number)])
            while records := self.take_once(listener, 1000, PROBE_S):  # ends: the flood is over
                found = self.numbers_of(records)
                numbers.update(each for each in found if each < FLOOD)
                marks.update(each for each in found if each >= FLOOD)
        lost = listener.lost - lost_before
        missing = handed_over - len(numbers)
        assert lost or missing or handed_over < FLOOD, (
            f"{FLOOD} records went into a buffer that was to have little room: it is not bounded"
        )
        assert lost >= missing, f"{missing} of {handed_over} records are missing, and {lost} are counted as lost"

    def _flood(self, sender: Sender) -> int:
        """Send until the transport takes no more. Returns how many records it took."""
        for start in range(0, FLOOD, 100):
            try:
                sender.send([self.made(number) for number in range(start, start + 100)])
            except UNAVAILABLE:
                return start
        return FLOOD

    @needs(Feature.LOSS_COUNT)
    def test_nothing_is_counted_as_lost_while_everything_arrives(self) -> None:
        listener, sender = self.connected()
        before = listener.lost
        self.passed_numbers(listener, sender, range(100), "records")
        assert listener.lost == before, f"every record arrived, and {listener.lost - before} are counted as lost"

    def test_the_name_can_be_that_of_a_topic(self) -> None:
        for opener in (self.opener, self.sender_opener):
            side = opener()
            self.addCleanup(side.close)
            if isinstance(side, Channel):
                assert is_topic_name(side.name), f"the name {side.name!r} cannot be that of a topic"

    def test_what_the_features_say_is_there_and_nothing_else(self) -> None:
        channel = self.open_channel(self.opener, "listening side")
        for feature, kind in ((Feature.ANSWERS, Acknowledging), (Feature.LOSS_COUNT, CountingLosses)):
            declared = feature in channel.features
            assert declared == isinstance(channel, kind), (
                f"{feature.name} is {'' if declared else 'not '}among the features, but the channel is "
                f"{'not ' if declared else ''}penstock.abc.{kind.__name__}"
            )

    def test_the_direction_that_a_channel_does_not_have_is_refused(self) -> None:
        listener, sender = self.open_listener(), self.open_sender()
        if isinstance(listener, Channel) and isinstance(sender, Channel):
            raise unittest.SkipTest("does not apply: the channel listens and sends")
        if isinstance(listener, Channel):
            with self.expect(ConfigError, "sending with a channel that only listens"):
                listener.send([self.made(0)])
        else:
            with self.expect(ConfigError, "listening to a channel that only sends"):
                sender.listen(1, 0.0)

    def test_close_ends_a_listen_that_waits_and_is_final(self) -> None:
        listener = self.open_channel(self.opener, "listening side")
        succeeds(listener.listen, 1, 0.0)
        started = threading.Event()
        waiting = self.in_background(self._listen_until_closed, listener, started)
        started.wait(COME_S)
        with contextlib.suppress(TimeoutError):
            waiting.result(BRIEF_S)
        listener.close()
        with self.expect(ConnectionClosedError, "closing a channel while somebody listens"):
            self.result_of(waiting, "a waiting listen ends when the channel is closed", COME_S)
        listener.close()
        with self.expect(ConnectionClosedError, "listening to a channel that was closed"):
            listener.listen(1, 0.0)

    def _listen_until_closed(self, listener: Listener, started: threading.Event) -> None:
        started.set()
        deadline_s = time.monotonic() + COME_S * 4
        while (left_s := deadline_s - time.monotonic()) > 0:  # what another case left may end a call of listen
            succeeds(listener.listen, 1, left_s)

    def test_a_sender_that_was_closed_is_not_used(self) -> None:
        sender = self.open_channel(self.sender_opener, "sending side")
        succeeds(sender.send, [])
        sender.close()
        sender.close()
        with self.expect(ConnectionClosedError, "sending with a channel that was closed"):
            sender.send([self.made(0)])

    def test_an_address_is_free_once_its_channel_is_closed(self) -> None:
        for _ in range(3):
            listener, sender = self.opener(), self.sender_opener()
            try:
                self.join(listener, sender, "records arrive when both sides were closed and opened again")
            finally:
                sender.close()
                listener.close()


def channel(
    listener: Factory[Any],
    sender: Factory[Any],
    features: Features | None = None,
    *,
    limited: Factory[Any] | None = None,
    ordered: bool = True,
    timestamps: bool = True,
    network: bool = False,
    large_bytes: int = LARGE_BYTES,
    too_large_bytes: int | None = None,
    answer_s: float | None = None,
    message: Message = plain_message,
    number_of: NumberOf = plain_number,
) -> type[ChannelCases]:
    """The cases for a channel. `listener` and `sender` open its two sides, which meet at one address.

    With a parameter, both get the same folder, a new one for each case: for the path of a socket, or for
    `port_to_bind(folder)` and `port_to_connect(folder)`. A side that the channel does not have is a stand-in: see the
    module's docstring.

    `limited` opens a listener whose buffer is far smaller than 20,000 records. `ordered`: records of one sender arrive
    in order. `timestamps`: times of records arrive. `network`: the sides use TCP between `port_to_bind` and
    `port_to_connect`, so that the connections can be cut, delayed and frozen. `large_bytes`: the size of the largest
    value to try; `too_large_bytes`: that of one that must be refused. `answer_s`: how long the sender waits for an
    answer: choose a short time that a busy machine can keep, such as 3. `message` and `number_of`, functions of a
    module: for a transport that does not carry any bytes, make a record of it and find the number in it.
    """
    cases = collect(ChannelCases, listener, features)
    cases.sender_factory = staticmethod(sender)
    cases.limited_factory = staticmethod(limited) if limited is not None else None
    cases.ordered = ordered
    cases.timestamps = timestamps
    cases.has_network = network
    cases.large_bytes = large_bytes
    cases.too_large_bytes = too_large_bytes
    cases.answer_s = answer_s
    cases.message = staticmethod(message)
    cases.number_in = staticmethod(number_of)
    return cases
