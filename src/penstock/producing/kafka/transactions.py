"""Delivery to Kafka in transactions: a batch is stored whole or not at all, and once, even after a crash.

The progress of a spool is committed in the same transaction as its records: as the offset of a group named after the
spool, on partition 0 of every topic that the transaction writes to. A killed process leaves a transaction that is
either committed, with both, or aborted, with neither. The next process first takes over the transactional id, so that
the brokers abort what was open and refuse requests of the old process; then it reads from the group how far the spool
was delivered. There is no moment at which a kill loses a record or stores one twice.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.errors import ConfigError, DeliveryError, FencedError, OvertakenError, TransactionLostError
from penstock.producing.buffers import BufferedRecord
from penstock.producing.delivering import Outcome, UndecidedError
from penstock.producing.kafka.client import TRANSACTION_TIMEOUT_S, transactional_configuration
from penstock.producing.kafka.delivery import Handover
from penstock.producing.partitioners import BatchPartitioner
from penstock.producing.settings import ProducerSettings
from penstock.streams.kafka.failures import REFUSED_FOR_GOOD, reason_of
from penstock.streams.kafka.producing.stalls import StallWatch
from penstock.streams.kafka.producing.transactions import TransactionalProducer
from penstock.streams.kafka.settings import client_configuration
from penstock.streams.kafka.stream import KafkaStream

logger = logging.getLogger(__name__)

_PROGRESS_S: Final = 1.0
_FLUSH_SLICE_S: Final = 0.1


class TransactionDelivery:
    """One transaction for each call of `send`, which returns when the outcome is known."""

    gathers = False
    is_whole = True

    def __init__(
        self,
        connection: KafkaStream,
        settings: ProducerSettings,
        partitioner: BatchPartitioner | None,
        transactional_id: str,
        progress_group: str | None,
    ) -> None:
        """`progress_group` is the group to which the progress of a spool is committed, if there is a spool.

        A spool is locked, so only its owner uses its id. If the owner is fenced, it was silent for longer than the
        brokers wait, as on a suspended machine, and it takes the id again. With any other id, another producer is
        running.
        """
        self._id = transactional_id
        self._is_ours_alone = transactional_id == progress_group
        self._configuration = transactional_configuration(connection, settings, transactional_id)
        self._client_configuration = {
            **client_configuration(connection.bootstrap, connection.options),
            **connection.options.librdkafka,
        }
        self._progress_group = progress_group
        self._stalls = StallWatch(connection.bootstrap, connection.options)
        self._acknowledged = 0
        self._handover = Handover(partitioner, self._stalls)
        self._stopping = threading.Event()
        self._producer: TransactionalProducer | None = self._new_producer()
        self._progress: Consumer | None = None
        self._ready = False
        self._news: list[Outcome] = []
        self._in_doubt: list[Outcome] | None = None
        """The outcomes that apply if the last transaction was committed, while that is unknown."""

    def start(self) -> None:
        if self._ready:
            return
        if self._producer is None:
            self._producer = self._new_producer()
        self._call("the transactional id could not be taken", self._producer.start)
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

    def delivered_through(self, first: BufferedRecord) -> int | None:
        """A transaction that delivered `first` committed its progress on the topic of `first`."""
        if self._progress is None:
            return None
        progress, asked = self._progress, [TopicPartition(first.record.topic, 0)]
        try:
            found = progress.committed(asked, _PROGRESS_S)[0]
        except KafkaException as error:
            raise DeliveryError(f"the progress of the spool cannot be read: {error}", retriable=True) from error
        if found.error is not None and found.error.code() not in REFUSED_FOR_GOOD:
            raise DeliveryError(f"the progress of the spool cannot be read: {found.error}", retriable=True)
        through = found.offset - 1
        return through if found.offset >= 0 and through >= first.sequence else None

    def send(self, batch: Sequence[BufferedRecord]) -> None:
        try:
            self.start()
            left = self._without_delivered(batch) if self._in_doubt is not None else batch
            if left:
                self._transact(left)
        except DeliveryError as error:
            told = {sequence for sequence, _, _, _ in self._news}
            self._news += [(held.sequence, -1, -1, error) for held in batch if held.sequence not in told]

    def _without_delivered(self, batch: Sequence[BufferedRecord]) -> Sequence[BufferedRecord]:
        """The records left to send, once the outcome of a transaction with an unanswered commit is known."""
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
        """Nothing to do: a transaction is committed as soon as possible."""

    def abandon(self) -> None:
        """Stop retrying calls. Called from another thread."""
        self._stopping.set()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
        self._progress = None
        self._drop_producer()

    def _transact(self, batch: Sequence[BufferedRecord]) -> None:
        producer = self._producer
        assert producer is not None
        self._handover.take_news()
        self._handover.new_batch()
        try:
            self._call("a transaction could not be started", producer.begin)
            for number, held in enumerate(batch):
                self._handover.produce(producer, held)
                if number % 1000 == 999:
                    self._call("a transaction could not continue", producer.poll, 0)
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

    def _commit(self, producer: TransactionalProducer, outcomes: list[Outcome]) -> None:
        """Commit, repeating the request until it is answered: only the answer tells the outcome."""
        self._in_doubt = outcomes
        try:
            self._call("a transaction could not be committed", producer.commit, math.inf)
        except _MustAbortError:
            self._in_doubt = None
            raise
        except DeliveryError as error:
            if self._progress is not None:
                raise
            self._in_doubt = None
            raise UndecidedError(f"{error}; it may be stored or not") from error
        self._in_doubt = None

    def _wait_for_reports(self, producer: TransactionalProducer, expected: int) -> list[Outcome]:
        """The outcome of each record; fewer if some have failed already."""
        outcomes = self._handover.take_news()
        before = self._acknowledged
        self._stalls.look(0, before)
        while len(outcomes) < expected:  # ends: librdkafka reports every record after its timeout at the latest
            self._acknowledged = before + len(outcomes)
            self._stalls.look(expected - len(outcomes), self._acknowledged)
            if self._stopping.is_set():
                raise DeliveryError("the producer was closed in the middle of a transaction", retriable=True)
            self._call("a transaction could not continue", producer.flush, _FLUSH_SLICE_S)
            outcomes += self._handover.take_news()
            if any(error is not None for _, _, _, error in outcomes):
                break
        return outcomes

    def _report_aborted(self, batch: Sequence[BufferedRecord], errors: dict[int, DeliveryError]) -> None:
        """Report the rejected records as such; the others were only in the same transaction."""
        because = next((error for error in errors.values() if not error.retriable), next(iter(errors.values())))
        aborted = DeliveryError(f"its transaction was aborted: {because}", retriable=True)
        for held in batch:
            error = errors.get(held.sequence, aborted)
            self._news.append((held.sequence, -1, -1, aborted if error.retriable else error))

    def _commit_progress(self, producer: TransactionalProducer, batch: Sequence[BufferedRecord]) -> None:
        if self._progress is None:
            return
        position = batch[-1].sequence + 1
        topics = dict.fromkeys(held.record.topic for held in batch)
        offsets = [TopicPartition(topic, 0, position) for topic in topics]
        what = "the progress of the spool could not be committed"
        self._call(what, producer.send_offsets, self._progress_group, offsets)

    def _abort(self, producer: TransactionalProducer) -> None:
        """Abort the transaction. If that is impossible now, start again: taking over the id aborts it."""
        try:
            producer.purge()
            self._call("a transaction could not be aborted", producer.abort)
        except (DeliveryError, _MustAbortError) as error:
            logger.info("%s", error)
            self._drop_producer()

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        self._ready = False
        if producer is not None:
            producer.close()

    def _new_producer(self) -> TransactionalProducer:
        return TransactionalProducer(self._configuration, self._id, TRANSACTION_TIMEOUT_S, self._stopping)

    def _call(self, what: str, step: Callable[..., object], *arguments: object) -> None:
        """Do a step of a transaction.

        Raises FencedError if another producer has the id, _MustAbortError if the transaction must be aborted, and
        DeliveryError if the step cannot succeed now.
        """
        try:
            step(*arguments)
        except TransactionLostError as error:
            if error.must_abort:
                raise _MustAbortError(f"{what}: {error}") from error
            reason = reason_of(error.__cause__) if error.__cause__ is not None else None
            is_fatal = reason is not None and reason.fatal()
            if isinstance(error, OvertakenError) and is_fatal and not self._is_ours_alone:
                raise FencedError(
                    f"another producer with the transactional id {self._id!r} was started: this one can no longer "
                    "send. Give each producer its own id or spool"
                ) from error
            if reason is not None and reason.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise ConfigError(
                    f"{what}: this client is not authorized to use the transactional id {self._id!r}"
                ) from error
            self._drop_producer()
            raise DeliveryError(f"{what}: {error}", retriable=True) from error


class _MustAbortError(Exception):
    """The transaction must be aborted."""
