"""Streams: systems that keep records in order and let them be read again.

`connect` finds the backend for the scheme of a URL, and returns a Connection, which sends and reads records. `kafka`
speaks Kafka's protocol through librdkafka; `embedded` finds or starts the broker of a data folder for `kafka`; `memory`
keeps records in this process. Other packages add schemes by entry points.
"""

from penstock.streams.connecting import connect
from penstock.streams.connection import Connection
from penstock.streams.reading import Reader
from penstock.streams.topic_patterns import TopicPattern

__all__ = ["Connection", "Reader", "TopicPattern", "connect"]
