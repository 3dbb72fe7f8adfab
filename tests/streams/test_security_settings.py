"""Settings for TLS and login that would have no effect are refused when a URL is opened, before anything is sent."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

import penstock
from penstock.channels import open_channel
from penstock.checkpoints import open_store
from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.queues import open_queue
from penstock.streams.options import Options
from penstock.streams.url import KafkaUrl, parse_url
from penstock.streams.url_settings import with_settings
from tests.secured_kafka import make_certificates
from tests.systems.nats_server import NatsServer


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://h:1?ssl_ca_certs=ca.pem", r"ssl_ca_certs is for TLS.*write rediss://"),
        ("redis://h:1?ssl_certfile=a&ssl_keyfile=b", r"ssl_certfile, ssl_keyfile are for TLS.*write rediss://"),
        ("redis://h:1?ssl_cert_reqs=none", "write rediss://"),
        ("redis://h:1?ssl_check_hostname=false", "write rediss://"),
        ("rediss://h:1?ssl_keyfile=a", "ssl_keyfile needs ssl_certfile"),
        ("pulsar://h:1?tls_ca=ca.pem", r"tls_ca is for TLS.*write pulsar\+ssl://"),
        ("pulsar://h:1?tls_cert=a&tls_key=b", r"write pulsar\+ssl://"),
        ("pulsar://h:1?tls_verify=false", r"write pulsar\+ssl://"),
        ("pulsar+ssl://ann:secret@h:1?token=a", "omit the other"),
        ("nats://h:1?tls_key=a", "tls_key needs tls_cert"),
        ("nats://h:1?credentials=a&nkey=b", "either credentials or nkey"),
        ("nats://:secret@h:1", "a password needs a user"),
        ("rabbitmq-stream://h:1?ca_file=a", r"write rabbitmq-stream\+tls://"),
        ("rabbitmq-stream://h:1?login=certificate&cert_file=a", r"write rabbitmq-stream\+tls://"),
        ("rabbitmq-stream+tls://h:1?key_file=a", "key_file needs cert_file"),
        ("rabbitmq-stream+tls://h:1?login=certificate", "login=certificate needs cert_file"),
    ],
)
def test_a_stream_refuses_security_that_would_be_ignored(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        penstock.connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["amqp", "amqp1", "stomp"])
def test_a_queue_refuses_security_that_would_be_ignored(scheme: str) -> None:
    for setting in ("ca_file=a", "cert_file=a", "cert_file=a&key_file=b"):
        with pytest.raises(ConfigError, match=f"for TLS, and {scheme}:// connects without"):
            open_queue(f"{scheme}://h:1/jobs?{setting}")
    with pytest.raises(ConfigError, match="key_file needs cert_file"):
        open_queue(f"{scheme}://h:1/jobs?key_file=a")


def test_a_connection_file_for_tls_is_not_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "connect.json"
    monkeypatch.setenv("MESSAGING_CONNECT_FILE", str(file))
    for told in ({"scheme": "amqps"}, {"tls": {"ca": "ca.pem"}}):
        file.write_text(json.dumps({"host": "h", "user": "ann", "password": "secret", **told}), "utf-8")
        with pytest.raises(ConfigError, match="asks for TLS: write amqps1://"):
            open_queue("amqp1://h:1/jobs")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/hooks?cert_file=a&key_file=b", "cert_file, key_file are for TLS.*write https://"),
        ("http://127.0.0.1:1/hooks?ca_file=a", "write https://"),
        ("webhooks:x.db?token_env=TOKEN", "set register"),
        ("nng+tcp://127.0.0.1:1?ca_file=a", "need tls=true"),
        ("zmq+tcp://127.0.0.1:1?curve_server_file=a", "need curve_key_file"),
    ],
)
def test_a_channel_refuses_security_that_would_be_ignored(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_channel(url)


def test_checkpoints_in_redis_refuse_security_that_would_be_ignored() -> None:
    with pytest.raises(ConfigError, match="ssl_ca_certs"):
        open_store("redis://127.0.0.1:1/0?ssl_ca_certs=ca.pem", None)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("ssl.ca.location=ca.pem", "ssl.ca.location has no effect with security.protocol=PLAINTEXT"),
        ("sasl.username=ann&sasl.password=secret", "sasl.username has no effect with security.protocol=PLAINTEXT"),
        ("sasl.username=ann&security.protocol=SSL", "SASL_SSL or SASL_PLAINTEXT"),
        ("ssl.ca.location=a&security.protocol=sasl_plaintext", "SSL or SASL_SSL"),
        ("enable.ssl.certificate.verification=false", "SSL or SASL_SSL"),
    ],
)
def test_kafka_refuses_security_that_would_be_ignored(settings: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        penstock.connect(f"kafka://127.0.0.1:1?{settings}")
    assert "secret" not in str(caught.value)


def test_kafka_takes_the_protocol_from_wherever_it_is_set() -> None:
    where = parse_url("kafka://127.0.0.1:1?security.protocol=SASL_SSL")
    assert isinstance(where, KafkaUrl)
    options = with_settings(where, Options(librdkafka={"sasl.username": "ann", "ssl.ca.location": "ca.pem"}))
    assert options.librdkafka["sasl.username"] == "ann"


OF_PULSAR = "org.apache.pulsar.client.impl.auth"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (f"authPlugin={OF_PULSAR}.oauth2.AuthenticationOAuth2\nauthParams=secret", "set token_file"),
        (f"authPlugin={OF_PULSAR}.AuthenticationTls\nauthParams=secret", "set tls_cert and tls_key"),
        (f"authPlugin={OF_PULSAR}.AuthenticationAthenz\nauthParams=secret", "log in with token_file"),
        (f"authPlugin={OF_PULSAR}.AuthenticationToken", "authParams is missing"),
        (f"authPlugin={OF_PULSAR}.AuthenticationBasic\nauthParams=secret", "authParams is not"),
    ],
)
def test_a_login_of_pulsars_configuration_file_that_cannot_be_used_is_not_left_out(
    settings: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "client.conf").write_text(settings, "utf-8")
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(tmp_path / "client.conf"))
    with pytest.raises(ConfigError, match=reason) as caught:
        penstock.connect("pulsar://127.0.0.1:1")
    assert "secret" not in str(caught.value)


def test_a_nats_server_without_tls_is_refused(tmp_path: Path) -> None:
    make_certificates(tmp_path, tmp_path / "ca.pem", tmp_path / "key.pem")
    with NatsServer(tmp_path / "server") as server:
        for url in (f"tls://127.0.0.1:{server.port}", f"{server.url}?tls_ca={tmp_path / 'ca.pem'}"):
            with pytest.raises(BrokerUnavailableError, match="has no TLS") as caught:
                penstock.connect(url)
            assert not caught.value.retriable


def test_a_nats_server_without_tls_gets_no_password() -> None:
    said = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            talking, _ = listener.accept()
            with talking:
                talking.settimeout(30)
                talking.sendall(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1000}\r\n')
                while data := talking.recv(1000):  # ends when the client goes away
                    said.extend(data)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(BrokerUnavailableError, match="has no TLS"):
            penstock.connect(f"tls://ann:secret@127.0.0.1:{listener.getsockname()[1]}?timeout_s=5")
        answering.join(60)
    assert not answering.is_alive()
    assert not said, bytes(said)
