"""Which URLs there are, and what is said about the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.channels import open_channel
from penstock.errors import UrlError
from penstock.queues import open_queue
from penstock.streams.url import Host, KafkaUrl, LogUrl, parse_url, without_password


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("log:./data", Path.cwd() / "data"),
        ("log:data", Path.cwd() / "data"),
        ("log:/var/data", Path("/var/data")),
        ("log:///var/data", Path("/var/data")),
        ("LOG:my data/of 1", Path.cwd() / "my data/of 1"),
        ("log:~/data", Path.home() / "data"),
    ],
)
def test_a_log_url_names_a_folder(url: str, folder: Path) -> None:
    assert parse_url(url) == LogUrl(folder)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("kafka://localhost", [Host("localhost", 9092)]),
        ("kafka://a:1,b:2, c", [Host("a", 1), Host("b", 2), Host("c", 9092)]),
        ("kafka://[::1]:9093/", [Host("::1", 9093)]),
    ],
)
def test_a_kafka_url_names_hosts(url: str, hosts: list[Host]) -> None:
    assert parse_url(url) == KafkaUrl(tuple(hosts))


def test_an_address_of_ipv6_keeps_its_brackets() -> None:
    assert KafkaUrl((Host("::1", 9092), Host("a", 1))).bootstrap == "[::1]:9092,a:1"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "empty"),
        ("carrier-pigeon://coop", "is not a URL of a stream; schemes that are installed: .*kafka:.*, log:, memory:"),
        ("amqp://h/q", "is not a URL of a stream, but of a queue: use App.handle.*open_queue.*penstock gateway"),
        ("sqs://eu-west-1/jobs", "but of a queue"),
        ("zmq+tcp://127.0.0.1:5555", "but of a channel: use .*open_channel.*penstock gateway"),
        ("https://example.com/hooks", "but of a channel"),
        ("./data", "did you mean log:./data"),
        ("localhost:9092", "did you mean kafka://localhost:9092"),
        ("log:", "names no folder"),
        ("log://data", "write log:data"),
        ("kafka:localhost", "write kafka://localhost"),
        ("kafka://", "not HOST:PORT"),
        ("kafka://a:0", "not HOST:PORT"),
        ("kafka://a:99999", "not HOST:PORT"),
        ("kafka://a,,b", "not HOST:PORT"),
        ("kafka://a:9092/orders", "name the topic where you send and read"),
        ("kafka://me:secret@a:9092", "cannot have a user and password"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(UrlError, match=hint.replace("?", r"\?")) as refusal:
        penstock.connect(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://me@host:5432/db"),
        (
            "postgresql://host/db?user=me&password=secret&sslmode=require",
            "postgresql://host/db?user=me&sslmode=require",
        ),
        ("postgresql://me:se@cret@host/db", "postgresql://me@host/db"),
        ("stomp://me:secret@host/q?destination={queue}", "stomp://me@host/q?destination={queue}"),
        ("amqp://me:se'cr et<>@host/q", "amqp://me@host/q"),
        ("sqlite:./letters.db", "sqlite:./letters.db"),
        ("orders.dlq", "orders.dlq"),
        ("kafka://127.0.0.1:9092", "kafka://127.0.0.1:9092"),
    ],
)
def test_passwords_are_not_shown(spec: str, shown: str) -> None:
    assert without_password(spec) == shown


def test_what_only_has_a_url_in_it_is_shown_as_it_is() -> None:
    text = '{"url": "http://a", "mail": "x:y@z"}'
    assert without_password(text) == text


def test_a_url_of_another_kind_is_named() -> None:
    with pytest.raises(UrlError, match=r"is not a URL of a queue, but of a stream: use penstock.connect"):
        open_queue("nats://h")
    with pytest.raises(UrlError, match=r"is not a URL of a channel, but of a queue"):
        open_channel("amqp://me:secret@h/q")
    with pytest.raises(UrlError, match=r"is not a URL of a queue; schemes that are installed"):
        open_queue("carrier-pigeon://coop")
