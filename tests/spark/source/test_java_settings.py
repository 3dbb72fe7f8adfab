"""The settings of librdkafka in the words of Kafka's Java client."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.source.java_settings import java_settings
from penstock.spark.source.native import connector_options, loss_options, position_options
from penstock.spark.source.origin import TopicSelection


def test_a_login_becomes_a_login_module() -> None:
    found = java_settings(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'say "it\\',
        }
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="say \\"it\\\\";'
        ),
    }


def test_certificates_travel_as_what_is_in_their_files(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-----{name}-----")
    given = {f"ssl.{name}.location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    found = java_settings({**given, "ssl.key.password": "x", "ssl.endpoint.identification.algorithm": "none"})
    assert found == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----ca-----",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----certificate-----",
        "ssl.keystore.key": "-----key-----",
        "ssl.key.password": "x",
        "ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"enable.ssl.certificate.verification": False}, "'enable.ssl.certificate.verification' has no counterpart"),
        ({"ssl.ca.location": "/no/such/file"}, "cannot be read"),
        ({"ssl.certificate.pem": "x"}, "needs both"),
        ({"sasl.username": "x", "sasl.mechanism": "OAUTHBEARER"}, "not 'OAUTHBEARER'"),
    ],
)
def test_what_cannot_be_said_in_java_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        java_settings(given)


def test_only_committed_records_are_read_with_their_headers() -> None:
    assert connector_options(
        "a:1,b:2", TopicSelection(("orders",)), {"client_id": "me", "librdkafka": {"fetch.min.bytes": 7}}
    ) == {
        "subscribe": "orders",
        "includeHeaders": "true",
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.isolation.level": "read_committed",
        "kafka.client.id": "me",
        "kafka.fetch.min.bytes": "7",
    }


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("earliest", "startingPosition", {"startingOffsets": "earliest"}),
        ("latest", "endingPosition", {"endingOffsets": "latest"}),
        ('{"1": 4, "0": 17}', "startingPosition", {"startingOffsets": '{"orders": {"0": 17, "1": 4}}'}),
        (
            "@1700000000000",
            "startingPosition",
            {"startingTimestamp": "1700000000000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
        ("@1700000000000", "endingPosition", {"endingTimestamp": "1700000000000"}),
    ],
)
def test_positions_are_said_in_the_words_of_the_connector(text: str, option: str, expected: dict[str, str]) -> None:
    assert position_options(("orders",), text, option, streaming=True) == expected


def test_expired_records_fail_the_query_or_are_passed_over() -> None:
    assert loss_options("fail") == {"failOnDataLoss": "true"}
    assert loss_options("earliest") == {"failOnDataLoss": "false"}
