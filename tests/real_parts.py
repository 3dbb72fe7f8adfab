"""The real parts that tests run our code against; a test that needs a missing one is skipped with the exact reason.

Every function answers where a part is, or raises pytest's skip with what is missing and why it could not be had. Call
them inside tests and fixtures, not at import. `make parts` fetches what can be fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tools import parts

Found = TypeVar("Found")


def kcat() -> str:
    """The kcat program."""
    return _or_skip(parts.kcat)


def chromium() -> str:
    """The Chromium program, for playwright's `executable_path`."""
    return _or_skip(parts.chromium)


def redis_server() -> str:
    """The redis-server program."""
    return _or_skip(parts.redis_server)


def nats_server() -> str:
    """The nats-server program."""
    return _or_skip(parts.nats_server)


def rabbitmq_server() -> str:
    """The rabbitmq-server program."""
    return _or_skip(parts.rabbitmq_server)


def rabbitmq_4() -> Path:
    """The folder of a Debian with RabbitMQ 4, for `chroot`."""
    return _or_skip(parts.rabbitmq_4)


def postgres_programs() -> Path:
    """The folder with PostgreSQL's `initdb` and `postgres`."""
    return Path(_or_skip(parts.postgres_programs))


def mariadb_programs() -> tuple[str, str]:
    """MariaDB's `mariadb-install-db` and `mariadbd`."""
    return _or_skip(parts.mariadb_install), _or_skip(parts.mariadb_server)


def node() -> str:
    """The node program."""
    return _or_skip(parts.node)


def kafkajs_modules() -> Path:
    """The `node_modules` folder with kafkajs in it; hand it to node as NODE_PATH."""
    return _or_skip(parts.kafkajs_modules)


def asyncapi_schema() -> Path:
    """The official JSON schema of AsyncAPI 3.0.0."""
    return _or_skip(parts.asyncapi_schema)


def kinesis_local() -> Path:
    """The folder of kinesis-local, whose `main.js` node runs."""
    return _or_skip(parts.kinesis_local)


def elasticmq_class_path() -> str:
    """What to pass to `java -cp` to have ElasticMQ."""
    return f"{_or_skip(parts.elasticmq_jars)}/*"


def hadoop_aws_class_path() -> str:
    """What Spark's class path needs more for s3a: URLs."""
    return f"{_or_skip(parts.hadoop_aws_jars)}/*"


def hdfs_class_path() -> str:
    """What to pass to `java -cp` to have HDFS."""
    return f"{_or_skip(parts.hdfs_jars)}/*"


def pulsar_folder() -> Path:
    """The folder of Apache Pulsar, with its jars in `lib`."""
    return _or_skip(parts.pulsar_folder)


def artemis_folder() -> Path:
    """The folder of Apache ActiveMQ Artemis, with its jars in `lib`."""
    return _or_skip(parts.artemis_folder)


def activemq_folder() -> Path:
    """The folder of Apache ActiveMQ Classic, with `bin/activemq.jar`, which starts it."""
    return _or_skip(parts.activemq_folder)


def pubsub_server() -> Path:
    """The program of a fake Pub/Sub server."""
    return _or_skip(parts.pubsub_server)


def qpid_folder() -> Path:
    """The folder of Apache Qpid Broker-J, with its jars in `VERSION/lib`."""
    return _or_skip(parts.qpid_folder)


def proton() -> str:
    """The version of python-qpid-proton, the AMQP 1.0 client."""
    return _or_skip(parts.proton)


def quixstreams_python() -> Path:
    """The python program of an environment that has Quix Streams in it."""
    return _or_skip(parts.quixstreams_python)


def java() -> str:
    """A java program new enough for an Apache Kafka 4.x server."""
    return _or_skip(parts.java)


def java_with_compiler() -> str:
    """A java program that runs `.java` source files as they are (`java -cp ... Client.java`)."""
    return _or_skip(parts.java_with_compiler)


def kafka_jars() -> Path:
    """The folder of Apache Kafka's jars: server, tools and Java client."""
    return _or_skip(parts.kafka_jars)


def spark_connector() -> Path:
    """The folder of Spark's Kafka connector."""
    return _or_skip(parts.spark_connector)


def kafka_class_path() -> str:
    """What to pass to `java -cp` to have all of Apache Kafka."""
    return f"{kafka_jars()}/*"


def kafka_version() -> str:
    """The version of the Apache Kafka in `kafka_jars`."""
    return parts.kafka_version()


def _or_skip(find: Callable[[], Found]) -> Found:
    try:
        return find()
    except parts.PartMissing as missing:
        pytest.skip(str(missing))
