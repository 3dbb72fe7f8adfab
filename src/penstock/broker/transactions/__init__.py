"""Transactions: records in several partitions, and offsets, that count together or not at all.

Requests of transactional producers come in; their state goes out to `__transaction_state`, and the markers that end
their transactions go to the partitions. Producer ids, also those of merely idempotent producers, are given out here.
"""

from penstock.broker.transactions.coordinator import Initialised, TransactionCoordinator
from penstock.broker.transactions.markers import Marker, OffsetsMarked
from penstock.broker.transactions.producer_ids import FileProducerIds, ProducerIds
from penstock.broker.transactions.settings import TransactionSettings
from penstock.broker.transactions.slots import TransactionDescription
from penstock.broker.transactions.states import ProducerIdentity, TopicPartition, TransactionState

__all__ = [
    "FileProducerIds",
    "Initialised",
    "Marker",
    "OffsetsMarked",
    "ProducerIdentity",
    "ProducerIds",
    "TopicPartition",
    "TransactionCoordinator",
    "TransactionDescription",
    "TransactionSettings",
    "TransactionState",
]
