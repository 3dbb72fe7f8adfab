"""Settings that come with a kafka: URL: which win, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.errors import ConfigError, UrlError
from penstock.producing.choosing import open_for_producing
from penstock.streams.kafka.stream import kafka_of
from penstock.streams.options import Options
from penstock.streams.url import Host, KafkaUrl, parse_url, without_password
from penstock.streams.url_settings import CONFIG_VARIABLE, client_with, resolved, settings_with, with_settings
from tests.servers import Penstock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kafka.properties"
    path.write_text(
        "# ours\n\nsecurity.protocol = SASL_SSL\n!old\nsasl.username=ada\nsasl.password=a = b \\ #c\n", "utf-8"
    )
    return path


FROM_FILE = {"security.protocol": "SASL_SSL", "sasl.username": "ada", "sasl.password": "a = b \\ #c"}


def kafka_url(text: str) -> KafkaUrl:
    found = parse_url(text)
    assert isinstance(found, KafkaUrl)
    return found


@pytest.mark.parametrize("slash", ["", "/"])
def test_settings_stand_behind_the_hosts(slash: str) -> None:
    found = kafka_url(f"kafka://a:1,b:2{slash}?ssl.ca.location=/x/y.pem&sasl.password=%26%25=@/+?&sasl.username=")
    assert found.hosts == (Host("a", 1), Host("b", 2))
    assert settings_with(found) == {"ssl.ca.location": "/x/y.pem", "sasl.password": "&%=@/+?", "sasl.username": ""}
    assert "@/+" not in repr(found)


def test_a_file_is_read_line_by_line(file: Path) -> None:
    assert settings_with(kafka_url(f"kafka://a?config={file}")) == FROM_FILE


def test_the_url_wins_over_the_file_and_the_options_over_both(file: Path) -> None:
    where = kafka_url(f"kafka://a?config={file}&sasl.username=bob&sasl.password=x")
    options = with_settings(where, Options(librdkafka={"sasl.password": "y"}))
    assert options.librdkafka == {"security.protocol": "SASL_SSL", "sasl.username": "bob", "sasl.password": "y"}


def test_the_environment_names_a_file_for_urls_that_name_none(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    other = tmp_path / "other"
    other.write_text("client.rack=1\n", "utf-8")
    assert settings_with(kafka_url("kafka://a")) == FROM_FILE
    assert settings_with(kafka_url(f"kafka://a?config={other}")) == {"client.rack": "1"}
    assert settings_with(kafka_url("kafka://a?config=")) == {}
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert settings_with(kafka_url("kafka://a")) == {}


def test_the_embedded_log_needs_no_settings(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    with penstock.connect(f"log:{folder}") as stream:
        assert kafka_of(stream).options.librdkafka == {}
        stream.send("orders", "x").result(30)


def test_a_spool_that_waits_for_its_brokers_has_the_settings(file: Path) -> None:
    streams = open_for_producing(f"kafka://127.0.0.1:1?config={file}", {}, durable=True)
    assert kafka_of(streams).options.librdkafka == FROM_FILE
    streams.close()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("secret-without-a-name", "line 1 of .* is not NAME=VALUE"),
        ("=secret", "line 1 of .* is not NAME=VALUE"),
        ("a=secret\na=secret", "line 2 of .* repeats a"),
        (
            "enable.auto.commit=true",
            r"line 1 of .*: the setting enable\.auto\.commit is set by Penstock, which commits only what",
        ),
        ("bootstrap.servers=a:1", r"the setting bootstrap\.servers comes from the URL"),
        ("plugin.library.paths=x", "is not supported: plugins"),
        (
            'sasl.jaas.config=x password="secret";',
            r"Java client; with librdkafka, use sasl\.username and sasl\.password",
        ),
        ("ssl.truststore.location=x.jks", r"with librdkafka, use ssl\.ca\.location, a PEM file"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_without_what_stands_there(line: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(line, "utf-8")
    with pytest.raises(ConfigError, match=complaint) as refusal:
        penstock.connect(f"kafka://127.0.0.1:1?config={file}")
    assert "secret" not in str(refusal.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"settings file .*, named by config= in the URL, cannot be read: Is a directory"
    ):
        penstock.connect(f"kafka://127.0.0.1:1?config={tmp_path}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        penstock.connect(f"kafka://127.0.0.1:1?config={tmp_path / 'binary'}")


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ("sasl.password=secret&more", "has a parameter that is not NAME=VALUE"),
        ("sasl.password=secret&=x", "has a parameter that is not NAME=VALUE"),
        ("sasl.password=secret&a=1&a=2", "has a twice"),
    ],
)
def test_what_is_wrong_in_a_url_is_told_without_its_secrets(parameters: str, complaint: str) -> None:
    with pytest.raises(UrlError, match=complaint) as refusal:
        penstock.connect(f"kafka://127.0.0.1:1?{parameters}")
    assert "secret" not in str(refusal.value)


def test_what_penstock_sets_itself_is_refused_wherever_it_comes_from(server: Penstock) -> None:
    with pytest.raises(ConfigError, match=r"the URL: the setting group\.id is set by Penstock: choose with group="):
        penstock.connect(f"kafka://{server.bootstrap}?group.id=x")
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset is set by Penstock: choose with start="):
        penstock.connect(f"kafka://{server.bootstrap}", librdkafka={"auto.offset.reset": "latest"})


def test_a_setting_in_the_url_reaches_librdkafka(server: Penstock) -> None:
    with penstock.connect(f"kafka://{server.bootstrap}?client.rack=here") as stream:
        assert kafka_of(stream).options.librdkafka == {"client.rack": "here"}
        assert stream.url == f"kafka://{server.bootstrap}?client.rack=here"
    with pytest.raises(ConfigError, match='No such configuration property: "no"'):
        penstock.connect(f"kafka://{server.bootstrap}?no=1")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("kafka://a:1?sasl.username=me&sasl.password=secret", "kafka://a:1?sasl.username=me"),
        ("kafka://a:1?SASL.PASSWORD=secret", "kafka://a:1"),
        ("kafka://a:1?sasl%2Epassword=secret", "kafka://a:1"),
        ("kafka://a:1?sasl.p%61ssword=secret", "kafka://a:1"),
        ("kafka://a:1?ssl.key.pem=secret&ssl.ca.location=x", "kafka://a:1?ssl.ca.location=x"),
        ("kafka://a:1?sasl.oauthbearer.client.secret=secret", "kafka://a:1"),
        ("kafka://a:1?sasl.password=sec ret'\"{}&config=f", "kafka://a:1?config=f"),
        ("kafka:a:1?sasl.password=secret", "kafka:a:1"),
        ("kafka://a:1?sasl.password=x&secret", "kafka://a:1"),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_for_other_hosts_everything_is_in_the_options(file: Path) -> None:
    url, client = resolved(
        f"kafka://a:1,b:2?config={file}&client.rack=x", {"acks": 1, "librdkafka": {"sasl.username": "z"}}
    )
    assert url == "kafka://a:1,b:2?config="
    assert client == {"acks": 1, "librdkafka": {**FROM_FILE, "client.rack": "x", "sasl.username": "z"}}
    assert resolved(url, client) == (url, client)
    assert resolved("kafka://a:1", {"acks": 1}) == ("kafka://a:1", {"acks": 1})
    assert resolved("log:/x", {}) == ("log:/x", {})
    assert client_with("memory:x", None) == {}
