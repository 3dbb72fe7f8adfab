"""What each system can do, as its adapter declares it: the tables of docs/systems/index.md."""

from __future__ import annotations

from typing import Final

from penstock.abc import Feature, Features
from penstock.channels.http.channel import FEATURES as HTTP
from penstock.channels.memory import AnsweringMemoryChannel, MemoryChannel
from penstock.channels.statsd.channel import FEATURES as STATSD
from penstock.channels.udp.channel import FEATURES as UDP
from penstock.channels.udp.channel import RAW_FEATURES as RAW_UDP
from penstock.channels.zmq.one_way import CountingZmqChannel, ZmqChannel
from penstock.channels.zmq.request import ZmqRequestChannel
from penstock.queues import amqp
from penstock.queues.amqp1.queue import FEATURES as AMQP1
from penstock.queues.amqp1.queue import RETRIES
from penstock.queues.pubsub.queue import FEATURES as PUBSUB
from penstock.queues.sqs.queue import FEATURES as SQS
from penstock.queues.stomp.queue import FEATURES as STOMP
from penstock.streams.file.settings import FileSettings
from penstock.streams.file.stream import features_of
from penstock.streams.kafka.stream import FEATURES as KAFKA
from penstock.streams.kinesis.topic import FEATURES as KINESIS
from penstock.streams.nats.topic_stream import FEATURES as NATS
from penstock.streams.pulsar.topic_stream import FEATURES as PULSAR
from penstock.streams.rabbitmq.topic_stream import FEATURES as RABBITMQ
from penstock.streams.redis.topic_stream import FEATURES as REDIS
from penstock.streams.sql.topic_tables import FEATURES as TABLES

STREAMS: Final[dict[str, Features]] = {
    "log: kafka:": KAFKA | {Feature.IDEMPOTENCE},  # with acks="all", which is the default
    "redis:": REDIS,
    "nats:": NATS,
    "rabbitmq-stream:": RABBITMQ,
    "pulsar:": PULSAR | {Feature.IDEMPOTENCE},  # with deduplicate=true
    "kinesis:": KINESIS,
    "postgresql: sqlite:": TABLES,
    "file:": features_of(FileSettings()),
}
QUEUES: Final[dict[str, Features]] = {
    "amqp:": amqp.FEATURES,
    "amqp1:": AMQP1 | RETRIES | {Feature.DEAD_LETTERS},  # of Artemis, with retries=broker
    "stomp:": STOMP | {Feature.DEAD_LETTERS},  # of ActiveMQ Classic, or with the setting dead_letters
    "pubsub:": PUBSUB | {Feature.DEAD_LETTERS},  # of subscriptions with a dead letter policy
    "sqs:": SQS | {Feature.DEAD_LETTERS},  # of queues with a redrive policy
}
CHANNELS: Final[dict[str, Features]] = {
    "zmq: nng:": CountingZmqChannel.FEATURES,  # publish/subscribe
    "zmq: nng:?pattern=request": ZmqRequestChannel.FEATURES,
    "zmq: nng:?pattern=pipeline": ZmqChannel.FEATURES,
    "http: https: webhooks:": HTTP,
    "udp:": UDP,
    "udp:?raw=true": RAW_UDP,
    "statsd:": STATSD,
    "memory-channel:": MemoryChannel.features,
    "memory-channel:?answers=true": AnsweringMemoryChannel.features,
}
