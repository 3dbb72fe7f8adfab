"""Leaders move, hang and are cut off: clients follow them, also those that were connected before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import penstock
from penstock.cluster.brokers import Cluster
from penstock.cluster.drills.stage import Stage
from penstock.streams.kafka.producing.open_transactions import TransactionCoordinators
from penstock.streams.kafka.producing.transactions import start_transactional
from penstock.streams.kafka.stream import kafka_of
from tests.clients.names import fresh

pytestmark = pytest.mark.xdist_group("kafka-cluster")
TIMEOUT_S = 60.0
TRANSACTIONS = 9
"""Enough for one on each broker, as good as always."""


@pytest.fixture
def stage(cluster: Cluster) -> Iterator[Stage]:
    found = Stage(cluster, 1, print)
    found.make_whole()
    yield found
    found.close()


@pytest.mark.timeout(300)
def test_offsets_are_found_and_records_deleted_after_leaders_have_moved(cluster: Cluster, stage: Stage) -> None:
    topic = stage.topic("moving", [[1, 2, 3]])
    place = (topic, 0)
    with penstock.connect(cluster.url) as stream:
        opened, survey, admin = stream.open_topic(topic), stream.survey(TIMEOUT_S), stream.admin()
        for number in range(4):
            stream.send(topic, str(number)).result(TIMEOUT_S)
        assert opened.span(0) == (0, 4)
        assert survey.ends([place]) == {place: 4}
        for leader in (2, 3):
            stage.move_leader(topic, leader)
            assert opened.span(0) == (0, 4)
        stage.move_leader(topic, 1)
        assert survey.ends([place]) == {place: 4}
        stage.move_leader(topic, 2)
        admin.delete_before(topic, {0: 2})
        assert opened.span(0) == (2, 4)


@pytest.mark.timeout(300)
def test_open_transactions_are_committed_and_aborted_while_the_first_broker_hangs(
    cluster: Cluster, stage: Stage
) -> None:
    """It coordinates some of them, which others take over."""
    topic, prefix = stage.topic("transactions", [[2, 3, 1]]), fresh("transaction")
    with penstock.connect(cluster.url) as stream:
        kafka = kafka_of(stream)
        ids = [f"{prefix}.{number}" for number in range(TRANSACTIONS)]
        for each in ids:
            producer = start_transactional(
                kafka.bootstrap, kafka.options, each, timeout_s=60, transaction_timeout_s=300
            )
            producer.begin()
            producer.produce(topic, each.encode())
            assert producer.flush(TIMEOUT_S) == 0
            producer.close()
        coordinators = TransactionCoordinators(cluster.bootstrap, kafka.options, TIMEOUT_S)
        owners = {each: coordinators.owner(each) for each in ids}
        stage.pause(1)
        for each in ids[1:]:
            assert coordinators.commit(each, owners[each].producer_id, owners[each].epoch)
        assert coordinators.open_ids(prefix) == ids[:1]
        coordinators.fence(ids[0])
        assert coordinators.open_ids(prefix) == []
        assert coordinators.is_supported()
        coordinators.close()
        assert sorted(record.value or b"" for record in stream.read(topic)) == [each.encode() for each in ids[1:]]


@pytest.mark.timeout(300)
def test_a_leader_that_stays_cut_off_holds_clients_up_only_until_another_one_leads(
    cluster: Cluster, stage: Stage
) -> None:
    """Beside them, clients with librdkafka's defaults still wait for the leader of before when these are done."""
    topic = stage.topic("cut-off", [[1, 2, 3]])
    acknowledged: list[bytes] = []
    patient = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic, "log_level": 0})
    with penstock.connect(cluster.url) as stream:
        opened = stream.open_topic(topic)
        stream.send(topic, "before").result(TIMEOUT_S)
        assert len(opened.read(0, 0, 10, TIMEOUT_S)) == 1
        patient.produce(topic, b"of the patient")
        assert patient.flush(TIMEOUT_S) == 0
        reader.assign([TopicPartition(topic, 0, 0)])
        assert len(reader.consume(2, TIMEOUT_S)) == 2
        cluster.isolate(1, "all")
        patient.produce(topic, b"late", on_delivery=lambda _, message: acknowledged.append(message.value() or b""))
        stream.send(topic, "meanwhile").result(TIMEOUT_S)
        assert [record.value for record in opened.read(0, 2, 10, TIMEOUT_S)] == [b"meanwhile"]
        with penstock.connect(cluster.url) as another:
            assert another.open_topic(topic).span(0) == (0, 3)
        patient.poll(0)
        assert acknowledged == []
        assert reader.consume(1, 0) == []
        assert cluster.broker(1).isolated_from == "all"
        patient.purge()
        cluster.heal(1)  # closing the reader would wait for the broker, with librdkafka's defaults
        reader.close()
