"""Delivering to Kafka's streams in transactions: a batch is stored whole or not at all, and once, also after a crash.

A spool's progress is committed in the same transaction as its records: as the offset of a group that is named after the
spool, on partition 0 of every topic that the transaction writes to. A process that is killed leaves a transaction that
is either committed, with both, or not, with neither. The next process takes over the transactional id first, which has
the brokers abort what was open and refuse whatever of the old process is still on its way; then it asks the group how
far the spool was delivered. There is no moment at which a kill loses a record or stores one twice.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.errors import ConfigError, DeliveryError
from penstock.producing.delivering import Outcome, UndecidedError
from penstock.producing.kafka_client import (
    REFUSED_FOR_GOOD,
    fenced,
    make_producer,
    transactional_configuration,
)
from penstock.producing.kafka_delivery import Handover
from penstock.producing.kept import Held
from penstock.producing.partitioners import BatchPartitioner
from penstock.producing.settings import ProducerSettings
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.failures import reason_of
from penstock.streams.kafka.settings import client_configuration

logger = logging.getLogger(__name__)

_CALL_S: Final = 1.0
"""How long one call to librdkafka may take; what takes longer is asked for again, unless we are told to stop."""
_FLUSH_SLICE_S: Final = 0.1
_ATTEMPTS: Final = 30
"""How often one step of a transaction is asked for, before the transaction is given up and begun anew."""
_PAUSE_S: Final = 0.05


class TransactionDelivery:
    """One transaction for each call of `send`, which returns when it is decided."""

    gathers = False
    is_whole = True

    def __init__(
        self,
        connection: Connection,
        settings: ProducerSettings,
        partitioner: BatchPartitioner | None,
        transactional_id: str,
        progress_group: str | None,
    ) -> None:
        """`progress_group`: where the progress of a spool is committed, if there is a spool.

        A spool's own id is nobody else's, as the spool is locked. Who loses it has been silent for longer than the
        brokers wait, as a machine that was asleep, and takes it again; under any other id, somebody else is there.
        """
        self._id = transactional_id
        self._is_ours_alone = transactional_id == progress_group
        self._configuration = transactional_configuration(connection, settings, transactional_id)
        self._client_configuration = {
            **client_configuration(connection.bootstrap, connection.options),
            **connection.options.librdkafka,
        }
        self._progress_group = progress_group
        self._handover = Handover(partitioner)
        self._producer: Producer | None = make_producer(self._configuration)
        self._progress: Consumer | None = None
        self._ready = False
        self._stopping = threading.Event()
        self._news: list[Outcome] = []
        self._in_doubt: list[Outcome] | None = None
        """Where the records stand if the last transaction was committed, when that is not known."""

    def start(self) -> None:
        if self._ready:
            return
        if self._producer is None:
            self._producer = make_producer(self._configuration)
        self._call("the transactional id could not be taken", self._producer.init_transactions, _CALL_S)
        if self._progress_group is not None and self._progress is None:
            self._progress = Consumer(
                {
                    **self._client_configuration,
                    "group.id": self._progress_group,
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                }
            )
        self._ready = True

    def delivered_through(self, first: Held) -> int | None:
        """A transaction that delivered `first` has committed its progress on the topic of `first`, among others."""
        if self._progress is None:
            return None
        progress, asked = self._progress, [TopicPartition(first.record.topic, 0)]
        try:
            found = progress.committed(asked, _CALL_S)[0]
        except KafkaException as error:
            raise DeliveryError(
                f"how far the spool was delivered cannot be asked for: {error}", retriable=True
            ) from error
        if found.error is not None and found.error.code() not in REFUSED_FOR_GOOD:
            raise DeliveryError(f"how far the spool was delivered cannot be asked for: {found.error}", retriable=True)
        through = found.offset - 1
        return through if found.offset >= 0 and through >= first.sequence else None

    def send(self, batch: Sequence[Held]) -> None:
        try:
            self.start()
            left = self._without_delivered(batch) if self._in_doubt is not None else batch
            if left:
                self._transact(left)
        except DeliveryError as error:
            told = {sequence for sequence, _, _, _ in self._news}
            self._news += [(held.sequence, -1, -1, error) for held in batch if held.sequence not in told]

    def _without_delivered(self, batch: Sequence[Held]) -> Sequence[Held]:
        """What is left to send, once it is known what became of a transaction whose commit was not answered."""
        assert self._in_doubt is not None
        through = self.delivered_through(batch[0])
        known, self._in_doubt = {outcome[0]: outcome for outcome in self._in_doubt}, None
        if through is None:
            return batch
        delivered = [held for held in batch if held.sequence <= through]
        self._news += [known.get(held.sequence, (held.sequence, -1, -1, None)) for held in delivered]
        return batch[len(delivered) :]

    def outcomes(self, wait_s: float) -> Sequence[Outcome]:
        news, self._news = self._news, []
        return news

    def hurry(self) -> None:
        """A transaction is committed as soon as it can be."""

    def abandon(self) -> None:
        """Called from another thread: no call is tried again from now on."""
        self._stopping.set()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        if self._producer is not None:
            self._producer.purge()
        self._progress = self._producer = None

    def _transact(self, batch: Sequence[Held]) -> None:
        producer = self._producer
        assert producer is not None
        self._handover.take_news()
        self._handover.new_batch()
        try:
            self._call("a transaction could not be begun", producer.begin_transaction)
            for number, held in enumerate(batch):
                self._handover.produce(producer, held)
                if number % 1000 == 999:
                    self._call("a transaction could not go on", producer.poll, 0)
            outcomes = self._wait_for_reports(producer, len(batch))
            errors = {sequence: error for sequence, _, _, error in outcomes if error is not None}
            if errors:
                self._abort(producer)
                self._report_aborted(batch, errors)
                return
            self._commit_progress(producer, batch)
            self._commit(producer, outcomes)
        except _MustAbortError as error:
            self._abort(producer)
            raise DeliveryError(str(error), retriable=True) from error
        self._news += outcomes

    def _commit(self, producer: Producer, outcomes: list[Outcome]) -> None:
        """Once it was asked for, it is asked for until it is answered: nobody else can tell what became of it."""
        self._in_doubt = outcomes
        try:
            self._call("a transaction could not be committed", producer.commit_transaction, _CALL_S, attempts=None)
        except _MustAbortError:
            self._in_doubt = None
            raise
        except DeliveryError as error:
            if self._progress is not None:
                raise
            self._in_doubt = None
            raise UndecidedError(f"{error}; it may be stored or not") from error
        self._in_doubt = None

    def _wait_for_reports(self, producer: Producer, expected: int) -> list[Outcome]:
        """What became of each record; fewer when some have failed already."""
        outcomes = self._handover.take_news()
        while len(outcomes) < expected:  # ends: librdkafka reports every record when its time is over
            if self._stopping.is_set():
                raise DeliveryError("the producer was closed in the middle of a transaction", retriable=True)
            self._call("a transaction could not go on", producer.flush, _FLUSH_SLICE_S)
            outcomes += self._handover.take_news()
            if any(error is not None for _, _, _, error in outcomes):
                break
        return outcomes

    def _report_aborted(self, batch: Sequence[Held], errors: dict[int, DeliveryError]) -> None:
        """Those that were refused for good say so; the others were only in the same transaction."""
        because = next((error for error in errors.values() if not error.retriable), next(iter(errors.values())))
        aborted = DeliveryError(f"its transaction was aborted: {because}", retriable=True)
        for held in batch:
            error = errors.get(held.sequence, aborted)
            self._news.append((held.sequence, -1, -1, aborted if error.retriable else error))

    def _commit_progress(self, producer: Producer, batch: Sequence[Held]) -> None:
        if self._progress is None:
            return
        position = batch[-1].sequence + 1
        topics = dict.fromkeys(held.record.topic for held in batch)
        offsets = [TopicPartition(topic, 0, position) for topic in topics]
        group = self._progress.consumer_group_metadata()
        self._call(
            "the progress of the spool could not be committed",
            producer.send_offsets_to_transaction,
            offsets,
            group,
            _CALL_S,
        )

    def _abort(self, producer: Producer) -> None:
        """Undo what was begun. Where that cannot be done now, start anew: taking the id again aborts it, too."""
        try:
            producer.purge()
            self._call("a transaction could not be aborted", producer.abort_transaction, _CALL_S)
        except (DeliveryError, _MustAbortError) as error:
            logger.info("%s", error)
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._ready = False
        self._producer = None

    def _call(
        self, what: str, function: Callable[..., object], *arguments: object, attempts: int | None = _ATTEMPTS
    ) -> None:
        """Call librdkafka, again as long as it says that this may help, so many times or without end.

        FencedError when another producer has the id; _MustAbortError when the transaction must be aborted;
        DeliveryError when none of it can be done now.
        """
        for attempt in itertools.count() if attempts is None else range(attempts):
            try:
                function(*arguments)
                return
            except KafkaException as error:
                reason = reason_of(error)
                if reason is None:
                    raise DeliveryError(f"{what}: {error}", retriable=True) from error
                self._judge(what, reason)
            if self._stopping.wait(min(_PAUSE_S * 2 ** min(attempt, 10), 1.0)):
                break
        self._begin_anew()
        raise DeliveryError(f"{what}: the broker does not answer", retriable=True)

    def _judge(self, what: str, reason: KafkaError) -> None:
        """Return if calling again may help; else raise what is to be done."""
        usurped = fenced(reason, self._id)
        if usurped is not None and not self._is_ours_alone:
            raise usurped
        if reason.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise ConfigError(
                f"{what}: this client may not use the transactional id {self._id!r}; ask for the right to"
            )
        if reason.txn_requires_abort():
            raise _MustAbortError(f"{what}: {reason.str()}")
        if reason.fatal() or not reason.retriable():
            self._begin_anew()
            raise DeliveryError(f"{what}: {reason.str()}", retriable=True)


class _MustAbortError(Exception):
    """The transaction cannot go on."""
