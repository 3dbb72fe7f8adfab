"""The client of schema registries: what it asks, remembers, tries again, and says when it is refused."""

from __future__ import annotations

import base64
import json
import pickle

import pytest

from penstock import SchemaRegistry
from penstock.errors import (
    ConfigError,
    IncompatibleSchemaError,
    RegistryError,
    RegistryUnavailableError,
    SerdeError,
)
from penstock.model.clock import SystemClock
from penstock.model.retry import Retry
from penstock.serde import AvroSerde, JsonSerde, Schema, Topic
from tests.serde.registry_server import Registry
from tests.serde.values import ORDER, Line, Order, Person
from tests.servers import free_ports

FIRST = Schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}))
SECOND = Schema(
    json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "long", "default": 5}],
        }
    )
)
BREAKING = Schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "c", "type": "string"}]}))


def test_schemas_are_registered_looked_up_and_listed(registry: SchemaRegistry) -> None:
    first = registry.register("orders/x value", FIRST)
    second = registry.register("orders/x value", SECOND)
    assert first != second
    assert registry.register("orders/x value", FIRST) == first
    assert registry.id_of("orders/x value", SECOND) == second
    assert registry.schema(first) == FIRST
    assert registry.lookup("orders/x value", SECOND).version == 2
    assert registry.latest("orders/x value").schema == SECOND
    assert registry.version("orders/x value", 1).id == first
    assert registry.versions("orders/x value") == [1, 2]
    assert registry.subjects() == ["orders/x value"]


def test_what_never_changes_is_asked_once(registry: SchemaRegistry, server: Registry) -> None:
    other = SchemaRegistry(server.url)
    for _ in range(3):
        number = registry.register("s", FIRST)
        assert other.schema(number) == FIRST
        assert other.version("s", 1).id == number
    assert server.requests == ["POST /subjects/s/versions", f"GET /schemas/ids/{number}", "GET /subjects/s/versions/1"]


def test_a_schema_that_breaks_its_readers_is_refused_by_name(registry: SchemaRegistry) -> None:
    assert registry.incompatibilities("s", BREAKING) == [], "a subject without versions takes any schema"
    registry.register("s", FIRST)
    assert registry.incompatibilities("s", SECOND) == []
    assert registry.incompatibilities("s", BREAKING)
    with pytest.raises(
        IncompatibleSchemaError, match="refused with 409: Schema being registered is incompatible"
    ) as told:
        registry.register("s", BREAKING)
    assert (told.value.status, told.value.code) == (409, 409)
    assert registry.compatibility("s") == registry.compatibility() == "BACKWARD"
    registry.set_compatibility("NONE", "s")
    assert (registry.compatibility("s"), registry.compatibility()) == ("NONE", "BACKWARD")
    assert registry.register("s", BREAKING)
    with pytest.raises(ConfigError, match="'SOME' is not a compatibility level: use one of NONE, BACKWARD"):
        registry.set_compatibility("SOME")


class ImpatientClock(SystemClock):
    """Notes for how long it should sleep, and does not."""

    __slots__ = ("slept_s",)

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)


def test_trouble_is_tried_again_after_growing_pauses(server: Registry) -> None:
    clock = ImpatientClock()
    registry = SchemaRegistry(server.url, clock=clock, retry=Retry(4, first_delay_s=1.0, max_delay_s=3.0))
    server.trouble = [503, 429, 500]
    assert registry.subjects() == []
    assert len(server.requests) == 4
    for slept_s, longest_s in zip(clock.slept_s, (1.0, 2.0, 3.0), strict=True):
        assert longest_s / 2 <= slept_s <= longest_s


def test_trouble_that_lasts_is_told_with_how_often_it_was_tried(server: Registry) -> None:
    registry = SchemaRegistry(server.url, retry=Retry(2, first_delay_s=0.0))
    server.trouble = [503, 503]
    with pytest.raises(RegistryUnavailableError, match=r"refused with 503: in trouble \(tried 2 times\)"):
        registry.subjects()


def test_a_registry_that_is_not_there_is_unavailable_and_another_address_takes_over(server: Registry) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(RegistryUnavailableError, match=rf"at {nobody}, asked to GET /subjects, could not be reached"):
        SchemaRegistry(nobody, retry=Retry(1)).subjects()
    assert SchemaRegistry(f"{nobody}, {server.url}/", retry=Retry(first_delay_s=0.0)).subjects() == []


def test_requests_prove_who_they_are(server: Registry) -> None:
    server.authorization = "Basic " + base64.b64encode(b"ada:s:cret").decode()
    assert SchemaRegistry(server.url, user="ada", password="s:cret").subjects() == []
    assert SchemaRegistry(server.url.replace("//", "//ada:s%3Acret@")).subjects() == []
    with pytest.raises(RegistryError, match="refused with 401: Unauthorized"):
        SchemaRegistry(server.url).subjects()
    server.authorization = "Bearer abc"
    registry = SchemaRegistry(server.url, token="abc")
    assert registry.subjects() == []
    assert pickle.loads(pickle.dumps(registry)).subjects() == []


def test_secrets_are_not_shown() -> None:
    registry = SchemaRegistry("http://ada:secret@127.0.0.1:1", retry=Retry(1))
    assert "secret" not in repr(registry)
    with pytest.raises(RegistryUnavailableError) as told:
        registry.subjects()
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"url": "registry:8081"}, "'registry:8081' is not a schema registry address"),
        ({"url": "ftp://x"}, "is not a schema registry address"),
        ({"url": "http://x", "user": "a", "password": "b", "token": "c"}, "a user or a token, not both"),
        ({"url": "http://x", "user": "a"}, "both user and password, or neither"),
        ({"url": "http://x", "timeout_s": 0}, "must be a positive number"),
        ({"url": "http://x", "retry": 4}, "is not a Retry"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SchemaRegistry(**arguments)  # type: ignore[arg-type]


def test_a_value_with_a_schema_carries_its_id(registry: SchemaRegistry, server: Registry) -> None:
    orders = Topic("orders", Order, serde=JsonSerde(Order, registry=registry))
    data = orders.new_record(ORDER).value
    assert data is not None
    assert data[:5] == b"\0\0\0\0\1"
    assert orders.decode(data) == ORDER
    assert orders.decoder(data) == ORDER
    assert server.subjects == {"orders-value": [1]}
    schema = json.loads(server.schemas[0]["schema"])
    assert (server.schemas[0]["schemaType"], schema["title"]) == ("JSON", "Order")
    assert pickle.loads(pickle.dumps(orders)).decode(data) == ORDER


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("topic", "orders-value"),
        ("record", "Line"),
        ("topic-record", "orders-Line"),
        (lambda topic, record, for_keys: f"{topic}/{record}/{for_keys}", "orders/Line/False"),
    ],
)
def test_subjects_are_named_for_the_topic_the_record_or_both(
    registry: SchemaRegistry, server: Registry, subject: str, expected: str
) -> None:
    for serde in (
        JsonSerde(Line, registry=registry, subject=subject),
        AvroSerde(Line, registry=registry, subject=subject),
    ):
        server.subjects.clear()
        assert serde.encode(Line("tea", 1), "orders")
        assert list(server.subjects) == [expected]


def test_keys_have_subjects_of_their_own(registry: SchemaRegistry, server: Registry) -> None:
    serde = AvroSerde("string", registry=registry, for_keys=True)
    topic = Topic("orders", Order, key=lambda order: order.customer, key_serde=serde)
    record = topic.new_record(ORDER)
    assert topic.decode_key(record.key) == "ada"
    assert list(server.subjects) == ["orders-key"]


def test_schemas_that_others_must_have_registered_are_not_registered(
    registry: SchemaRegistry, server: Registry
) -> None:
    careful = AvroSerde(Line, registry=registry, register=False)
    with pytest.raises(RegistryError, match="the schema is not a version of subject 'orders-value': register it"):
        careful.encode(Line("tea", 1), "orders")
    assert server.subjects == {}
    AvroSerde(Line, registry=registry).encode(Line("tea", 1), "orders")
    assert careful.encode(Line("tea", 1), "orders")


@pytest.mark.parametrize("kind", [JsonSerde, AvroSerde])
def test_bytes_without_an_id_are_refused(registry: SchemaRegistry, kind: type[JsonSerde]) -> None:
    topic = Topic("t", Line, serde=kind(Line, registry=registry))
    with pytest.raises(SerdeError, match="topic 't': 2 bytes are too short for a value with a schema id"):
        topic.decode(b"{}")
    with pytest.raises(SerdeError, match="topic 't': a value starts with 123, not 0: it was written without"):
        topic.decode(b'{"item":"tea","cups":1}')


def test_an_unknown_id_is_the_values_fault_and_an_unreachable_registry_is_not(
    registry: SchemaRegistry, server: Registry
) -> None:
    topic = Topic("t", Line, serde=AvroSerde(Line, registry=SchemaRegistry(server.url, retry=Retry(1))))
    with pytest.raises(
        SerdeError, match=r"topic 't': a value names schema 9, which <SchemaRegistry at .* does not have"
    ):
        topic.decode(b"\0\0\0\0\x09abc")
    server.trouble = [503]
    with pytest.raises(RegistryUnavailableError):
        topic.decode(b"\0\0\0\0\x09abc")
    assert not issubclass(RegistryError, SerdeError), "or good records would go to the dead letters"


def test_what_has_no_schema_cannot_be_registered(registry: SchemaRegistry) -> None:
    with pytest.raises(ConfigError, match="needs a type, whose schema is registered"):
        JsonSerde(registry=registry)
    with pytest.raises(
        ConfigError, match="there is no subject name strategy 'topics': use topic, record, topic-record"
    ):
        JsonSerde(Line, registry=registry, subject="topics")
    with pytest.raises(ConfigError, match="'http://x' is not a SchemaRegistry"):
        JsonSerde(Line, registry="http://x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the record of this schema has no name"):
        AvroSerde("string", registry=registry, subject="record").encode("x", "t")


def test_models_are_registered_with_the_names_they_read(registry: SchemaRegistry, server: Registry) -> None:
    serde = JsonSerde(Person, registry=registry)
    assert serde.decode(serde.encode(Person(fullName="Ada"), "t"), "t") == Person(fullName="Ada")
    assert "fullName" in json.loads(server.schemas[0]["schema"])["properties"]


def test_an_answer_that_is_no_registrys_is_told(server: Registry) -> None:
    with pytest.raises(RegistryError, match="refused with 404: HTTP 404 Not Found"):
        SchemaRegistry(f"{server.url}/elsewhere").subjects()
