"""Streams: systems that keep records in order and let them be read again, each reached by its protocol.

In comes a URL; `connect` finds out which protocol it means and gives back a Connection, with which records are sent
and read. `kafka` speaks Kafka's protocol through librdkafka; `embedded` finds the broker of a data folder, or starts
it, and hands it to `kafka`, so that both share one path.
"""

from penstock.streams.connecting import connect
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.reading import Reader

__all__ = ["Connection", "Reader", "connect"]
