"""A Kafka that wants TLS and a login: everything that connects takes its settings from the URL, a file, or the
environment, and says what is wrong with them without telling them."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cli.checks.network import check_skew, check_url
from penstock.console import link
from penstock.console.messages import pages as messages
from penstock.console.service import Service
from penstock.console.views import MessageQuery, Person
from penstock.errors import BrokerUnavailableError, ConfigError, StreamError
from penstock.streams.kafka.plain import PlainConnection
from penstock.streams.kafka.producing.open_transactions import TransactionCoordinators
from penstock.streams.kafka.producing.transactions import start_transactional
from penstock.streams.kafka.security import Security
from penstock.streams.kafka.stream import kafka_of
from penstock.streams.url import Host
from penstock.streams.url_settings import CONFIG_VARIABLE
from tests.cli.running import Command
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.secured_kafka import PASSWORD, SecuredKafka, make_certificates

SOON_S = 15.0
"""What is refused for good is told long before the time to connect is over."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured") / "kafka") as running:
        yield running


@pytest.fixture
def with_file(kafka: SecuredKafka) -> str:
    """The URL with its settings in a file."""
    return f"kafka://127.0.0.1:{kafka.secure_port}?config={kafka.settings_file()}"


def test_a_program_with_its_settings_in_the_url(
    kafka: SecuredKafka, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = fresh()
    with penstock.connect(kafka.secure_url) as stream:
        stream.create_topic(topic, partitions=1)
        for number in range(3):
            stream.send(topic, number, key="k")
        stream.flush(30)
        assert [record.value for record in stream.read(topic)] == [b"0", b"1", b"2"]
        assert stream.admin().sizes()[topic, 0] > 0, "sizes are asked for over TLS, too"
        assert PASSWORD not in f"{stream!r} {stream.url} {kafka_of(stream).options!r}"
    handled = []
    app = penstock.App(kafka.secure_url, group=fresh("group"))  # its checkpoints are in topics, by transactions

    @app.handle(topic, end="latest")
    def handle(value: bytes) -> None:
        handled.append(value)

    app.run()
    assert handled == [b"0", b"1", b"2"]
    with penstock.Producer(kafka.secure_url) as producer:
        producer.send(topic, b"last").result(30)
    output = capfd.readouterr()
    assert PASSWORD not in f"{caplog.text} {output.out} {output.err}"


def test_commands_with_their_settings_in_a_file_that_the_environment_names(kafka: SecuredKafka) -> None:
    run = Command(f"kafka://127.0.0.1:{kafka.secure_port}")
    run.environment = {**run.environment, CONFIG_VARIABLE: str(kafka.settings_file())}
    topic, group = fresh(), fresh("group")
    run.well("produce", topic, given="a\nb\n")
    assert run.well("consume", topic, "--group", group, "--format", "raw").out.split() == ["a", "b"]
    (row,) = (row for row in run.well("topics", "--json").json if row["topic"] == topic)
    assert (row["records"], row["size_bytes"] > 0) == (2, True)
    assert group in run.well("lag", "--json").out
    run.environment = {**run.environment, CONFIG_VARIABLE: "/no/such/file"}
    refused = run("topics")
    assert refused.code != 0
    assert f"the settings file /no/such/file, named by {CONFIG_VARIABLE}, cannot be read: No such file" in refused.err


def test_the_console_shows_a_secured_stream_and_no_secret(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANSWER_S", "_REACHED_S"):
        monkeypatch.setattr(link, name, 60.0)
    for name in ("SCAN_S", "SILENT_S"):
        monkeypatch.setattr(messages, name, 60.0)
    ann = Person("ann", "127.0.0.1")
    before, topic = fresh("before"), fresh()
    with penstock.connect(kafka.secure_url) as stream:
        stream.create_topic(before, partitions=1)
    with Service(kafka.secure_url, state=tmp_path / "state", every_s=3_600) as service:
        service.create_topic(ann, topic, partitions=1)
        partition, pointer = service.produce(ann, topic, "k", "v")
        assert [row.value.text for row in service.messages(MessageQuery(topic)).rows] == ["v"]
        service.replay(ann, topic, partition, pointer)
        eventually("the size is known", lambda: service.look_now().topics[before].size_bytes is not None)
        assert PASSWORD not in service.url
        assert "sasl.password" not in service.url
    for file in (tmp_path / "state").rglob("*"):
        assert not file.is_file() or b"s3cr" not in file.read_bytes(), f"{file.name} has the password in it"


def test_the_doctor_examines_a_secured_stream(kafka: SecuredKafka, with_file: str) -> None:
    assert [finding.level for finding in check_url(with_file, SOON_S)] == ["ok", "ok"]
    assert [finding.level for finding in check_skew(with_file, SOON_S)] == ["ok"]
    (finding,) = check_url(f"{with_file}&sasl.password=wrong", SOON_S)
    assert finding.level == "fail"
    assert "Invalid username or password" in finding.text
    (finding,) = check_url(f"kafka://127.0.0.1:{kafka.secure_port}", SOON_S)
    assert "security.protocol" in str(finding.fix)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("sasl.password=wrong", "did not accept this client: .* Invalid username or password"),
        ("sasl.mechanism=SCRAM-SHA-256", "did not accept this client: .*supported mechanisms: PLAIN"),
        ("enable.ssl.certificate.verification=true&ssl.ca.location={other}", "Check ssl.ca.location"),
    ],
)
def test_who_is_not_let_in_is_told_why_at_once(
    with_file: str, kafka: SecuredKafka, more: str, told: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    make_certificates(tmp_path, other, tmp_path / "unused.pem")
    began_s = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match=told) as refusal:
        penstock.connect(f"{with_file}&{more.format(other=other)}", connect_timeout_s=60)
    assert time.monotonic() - began_s < 2 * SOON_S
    assert "wrong" not in str(refusal.value)


def test_a_plain_client_is_told_how_to_say_more(kafka: SecuredKafka) -> None:
    with pytest.raises(BrokerUnavailableError, match="If it needs TLS or a login, use"):
        penstock.connect(f"kafka://127.0.0.1:{kafka.secure_port}", connect_timeout_s=SOON_S)


def test_a_secured_client_of_a_plain_listener_gives_up_in_time(kafka: SecuredKafka) -> None:
    url = f"kafka://{kafka.bootstrap}?config={kafka.settings_file()}"
    with pytest.raises(BrokerUnavailableError, match=r"its listener is SASL_SSL, as security\.protocol says"):
        penstock.connect(url, connect_timeout_s=1)


def test_a_setting_that_nobody_knows_is_named(with_file: str) -> None:
    with pytest.raises(ConfigError, match=r'property: "sasl\.pasword"'):
        penstock.connect(f"{with_file}&sasl.pasword=x")


def test_our_own_requests_say_what_they_cannot_do(kafka: SecuredKafka) -> None:
    host = Host("127.0.0.1", kafka.secure_port)
    refused = r"refused the login of user 'ada': .*Invalid username or password"
    with pytest.raises(StreamError, match=refused) as refusal:
        PlainConnection(host, SOON_S, Security({**kafka.settings(), "sasl.password": "wrong"}))
    assert "wrong" not in str(refusal.value)
    with pytest.raises(ConfigError, match="only the SASL mechanism PLAIN is supported, not SCRAM-SHA-512"):
        PlainConnection(host, SOON_S, Security({**kafka.settings(), "sasl.mechanism": "SCRAM-SHA-512"}))
    with pytest.raises(OSError, match="certificate verify failed"):
        PlainConnection(host, SOON_S, Security({**kafka.settings(), "ssl.ca.location": "probe"}))
    unverified = {**kafka.settings(), "ssl.ca.location": "probe", "enable.ssl.certificate.verification": False}
    with PlainConnection(host, SOON_S, Security(unverified)) as connection:
        assert connection.cluster_id()


def test_transactions_of_another_producer_are_committed_and_aborted_over_tls(kafka: SecuredKafka) -> None:
    topic = fresh()
    with penstock.connect(kafka.secure_url) as stream:
        stream.create_topic(topic, partitions=1)
        at = kafka_of(stream)
        coordinators = TransactionCoordinators(at.bootstrap, at.options, 30)
        assert coordinators.is_supported()
        for value in (b"committed", b"aborted"):
            transactional_id = f"{topic}.{value.decode()}"
            producer = start_transactional(
                at.bootstrap, at.options, transactional_id, timeout_s=30, transaction_timeout_s=60
            )
            producer.begin()
            producer.produce(topic, value)
            assert producer.flush(30) == 0
            producer.close()
        assert sorted(coordinators.open_ids(f"{topic}.")) == [f"{topic}.aborted", f"{topic}.committed"]
        owner = coordinators.owner(f"{topic}.committed")
        assert owner.is_open
        assert coordinators.commit(f"{topic}.committed", owner.producer_id, owner.epoch)
        coordinators.fence(f"{topic}.aborted")
        assert not coordinators.open_ids(f"{topic}.")
        coordinators.close()
        assert [record.value for record in stream.read(topic)] == [b"committed"]
        scram = dataclasses.replace(at.options, librdkafka={**at.options.librdkafka, "sasl.mechanism": "SCRAM-SHA-256"})
        with pytest.raises(ConfigError, match="only the SASL mechanism PLAIN"):
            TransactionCoordinators(at.bootstrap, scram, 30)
