"""What people do through the console: it is done, and written down, whether it succeeds or fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.console.messages.sending import REPLAYED_HEADER
from penstock.console.service import Service, default_state
from penstock.console.views import MessageQuery, Person
from penstock.errors import (
    AuditError,
    ConfigError,
    GroupError,
    InvalidTopicError,
    PenstockError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.observe.alerts import Rule, RuleKind
from tests.clients.names import fresh
from tests.console.conftest import SELDOM_S
from tests.servers import Penstock


def test_a_message_is_produced_where_it_was_wanted(service: Service, ann: Person, topic: str) -> None:
    assert service.produce(ann, topic, "k", '{"a": 1}', [("h", "x"), ("h", "ü")], 2, "json") == (2, 0)
    row = service.message(topic, 2, 0).row
    assert (row.key.text, row.value.text) == ("k", '{\n  "a": 1\n}')
    assert [(name, shown.text) for name, shown in row.headers] == [("h", "x"), ("h", "ü")]
    service.produce(ann, topic, None, None, partition=2)
    tombstone = service.record(topic, 2, 1)
    assert (tombstone.key, tombstone.value) == (None, None)
    service.produce(ann, topic, "//8=", "00 ff", partition=2, encoding="hex", key_encoding="base64")
    binary = service.record(topic, 2, 2)
    assert (binary.key, binary.value) == (b"\xff\xff", b"\x00\xff")
    line = service.audit(1)[0]
    assert (line.who, line.action, line.outcome, line.text) == ("ann", "produce", "done", "[2,2]")
    assert line.parameters["value"] == "00 ff"


@pytest.mark.parametrize(
    ("value", "encoding"), [("{", "json"), ("xyz", "hex"), ("a", "base64"), ("\ud800", "text"), ("x", "xml")]
)
def test_what_is_not_written_as_it_says_is_not_sent(
    service: Service, ann: Person, stream: penstock.Connection, topic: str, value: str, encoding: str
) -> None:
    with pytest.raises(ConfigError):
        service.produce(ann, topic, None, value, encoding=encoding)  # type: ignore[arg-type]
    assert sum(stream.admin().ends(topic, range(3)).values()) == 0
    assert service.audit(1)[0].outcome == "failed"


def test_a_message_is_not_sent_to_where_nothing_is(
    service: Service, ann: Person, stream: penstock.Connection, topic: str
) -> None:
    for wrong, partition in ((fresh(), None), (topic, 17)):
        with pytest.raises(UnknownTopicError):
            service.produce(ann, wrong, None, "x", partition=partition)
        assert service.audit(1)[0].text.startswith("UnknownTopicError")
    assert wrong in stream.topics()
    with pytest.raises(ConfigError, match="no name"):
        service.produce(ann, topic, None, "x", [("", "x")])


def test_a_replayed_message_is_the_same_and_says_where_from(
    service: Service, ann: Person, stream: penstock.Connection, topic: str
) -> None:
    stream.send(topic, b"\xff\x00", key=b"\xfe", headers=[("a", b"\x01"), ("a", None)], partition=1)
    stream.flush(30)
    assert service.replay(ann, topic, 1, 0) == (1, 1)
    assert service.replay(ann, topic, 1, 1) == (1, 2)
    first, *copies = stream.read(topic, partitions=[1])
    for number, copy in enumerate(copies):
        assert (copy.key, copy.value) == (first.key, first.value)
        origin = (REPLAYED_HEADER, f"{topic}-1@{number}".encode())
        assert copy.headers == (*first.headers, origin)
    other = fresh()
    stream.create_topic(other, 1)
    assert service.replay(ann, topic, 1, 0, to=other) == (0, 0)
    with pytest.raises(PenstockError):
        service.replay(ann, topic, 1, 99)


def test_topics_are_made_changed_and_removed(service: Service, ann: Person, stream: penstock.Connection) -> None:
    name = fresh()
    service.create_topic(ann, name, 2, {"retention.ms": "60000"})
    detail = service.topic(name)
    assert len(detail.facts.partitions) == 2
    own = {each.name: each.value for each in detail.config if not each.is_default}
    assert own["retention.ms"] == "60000"
    service.alter_topic(ann, name, {"retention.ms": None, "max.message.bytes": "5000"}, 3)
    own = {each.name: each.value for each in service.topic(name).config if not each.is_default}
    assert own == {"max.message.bytes": "5000"}
    assert stream.admin().partitions_of(name) == (0, 1, 2)
    for fewer_or_nothing in (1, None):
        with pytest.raises(ConfigError):
            service.alter_topic(ann, name, {}, fewer_or_nothing)
    with pytest.raises(TopicExistsError):
        service.create_topic(ann, name, 1)
    with pytest.raises(InvalidTopicError):
        service.delete_topic(ann, "__consumer_offsets")
    service.delete_topic(ann, name)
    assert name not in stream.topics()
    service.look_now()
    with pytest.raises(UnknownTopicError):
        service.topic(name)
    lines = [(line.action, line.outcome) for line in service.audit(7)]
    assert lines == [
        ("delete_topic", "done"),
        ("delete_topic", "failed"),
        ("create_topic", "failed"),
        ("alter_topic", "failed"),
        ("alter_topic", "failed"),
        ("alter_topic", "done"),
        ("create_topic", "done"),
    ]


def test_a_group_is_moved_after_a_look_at_what_would_move(
    service: Service, ann: Person, stream: penstock.Connection, topic: str
) -> None:
    group = fresh("group")
    for number in range(10):
        stream.send(topic, str(number), partition=0)
    stream.flush(30)
    planned = service.plan_reset(group, "latest", [topic])
    assert [(move.partition, move.committed, move.to) for move in planned] == [
        (0, None, 10),
        (1, None, 0),
        (2, None, 0),
    ]
    with pytest.raises(GroupError):
        service.group(group)
    assert list(service.reset(ann, group, "latest", [topic]).moves) == planned
    assert service.look_now().groups[group].lag == 0
    moved = service.reset(ann, group, "-4", [topic], [0])
    assert [(move.committed, move.to, move.by) for move in moved.moves] == [(10, 6, -4)]
    assert str(moved) == f"Moved {group} in 1 partition: the Kafka group's offsets."
    service.look_now()
    detail = service.group(group)
    assert detail.facts.lag == 4
    assert detail.members == ()
    assert [each.name for each in service.topic(topic).groups] == [group]
    with pytest.raises(ConfigError, match="is not a position"):
        service.plan_reset(group, "yesterday-ish", [topic])
    service.delete_group(ann, group)
    assert group not in service.look_now().groups


def test_rules_are_added_muted_and_removed(service: Service, ann: Person) -> None:
    rule = Rule(name="behind", kind=RuleKind.LAG, threshold=5)
    service.add_rule(ann, rule)
    assert rule in service.rules()
    assert service.audit(1)[0].parameters["rule"]["threshold"] == 5
    service.mute(ann, "behind", 9_999_999_999_999)
    assert [mute.rule for mute in service.mutes()] == ["behind"]
    service.remove_rule(ann, "behind")
    assert rule not in service.rules()
    assert service.alerting_problem() is None


@pytest.fixture
def own_service(server: Penstock, tmp_path: Path) -> Iterator[Service]:
    with Service(f"kafka://{server.bootstrap}", state=tmp_path / "state", every_s=SELDOM_S) as service:
        yield service


def test_what_cannot_be_written_down_is_not_done(
    own_service: Service, ann: Person, stream: penstock.Connection
) -> None:
    shutil.rmtree(own_service.state)
    own_service.state.write_text("a file where the folder should be")
    name = fresh()
    with pytest.raises(AuditError, match="refused"):
        own_service.create_topic(ann, name, 1)
    assert name not in stream.topics()


def test_the_audit_log_outlives_the_console(server: Penstock, ann: Person, tmp_path: Path) -> None:
    url, name = f"kafka://{server.bootstrap}", fresh()
    with Service(url, state=tmp_path, every_s=SELDOM_S) as first:
        first.create_topic(ann, name, 1)
    with Service(url, state=tmp_path, every_s=SELDOM_S, read_only=True) as second:
        assert [(line.action, line.outcome) for line in second.audit()] == [("create_topic", "done")]


def test_state_is_kept_beside_the_log_or_by_the_name_of_the_broker(tmp_path: Path) -> None:
    assert default_state(f"log:{tmp_path}") == tmp_path / "console"
    assert default_state("kafka://broker.example:9093,other:1") == Path("penstock-console/broker.example_9093")
    assert default_state("kafka://[::1]:9092") == Path("penstock-console/__1_9092")
    for url in ("memory:x", "ftp://x"):
        with pytest.raises((ConfigError, UrlError)):
            default_state(url)
        with pytest.raises((ConfigError, UrlError)):
            Service(url, state=tmp_path)


def test_messages_that_were_just_produced_are_there(service: Service, ann: Person, topic: str) -> None:
    for number in range(5):
        service.produce(ann, topic, "one key", str(number))
    assert [row.value.text for row in service.messages(MessageQuery(topic)).rows] == ["0", "1", "2", "3", "4"]
