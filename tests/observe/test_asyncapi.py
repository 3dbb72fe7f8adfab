"""The AsyncAPI document of an app: it is one by the official schema, and says what the app says."""

from __future__ import annotations

import json
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pydantic
import pytest

from penstock.app import App
from penstock.errors import ConfigError
from penstock.serde import Topic
from tests.cli.running import Command
from tests.real_parts import asyncapi_schema


@dataclass
class Item:
    name: str
    cents: int


@dataclass
class Order:
    customer: str
    items: list[Item]


class Bill(msgspec.Struct):
    cents: int


class Address(pydantic.BaseModel):
    street: str


class Customer(pydantic.BaseModel):
    address: Address


def of_another_module() -> Topic[Any]:
    item: Any = make_dataclass("Item", [("weight", float)])
    return Topic("parcels", make_dataclass("Parcel", [("items", list[item])]))


def app_on(url: str = "kafka://one:9092,two:9093") -> App:
    app = App(url, group="billing")
    orders, bills = Topic("orders", Order, partitions=4), Topic("bills", Bill, serde="msgpack")
    app.handle(orders, to=bills)(lambda value: Bill(1))
    app.handle(orders, group="audit")(lambda value: None)
    app.handle(Topic("customers", Customer))(lambda value: None)
    app.handle(Topic("avro", Order, serde="avro"))(lambda value: None)
    app.handle(Topic("notes", str))(lambda value: None)
    app.handle(Topic("anything", None))(lambda value: None)
    app.handle("raw.bytes")(lambda value: None)
    app.handle(of_another_module())(lambda value: None)
    return app


def validate(document: Any) -> None:
    jsonschema.Draft7Validator(json.loads(asyncapi_schema().read_text())).validate(document)


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        found = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return found + [each for value in part.values() for each in references(value)]
    return [each for value in part for each in references(value)] if isinstance(part, list) else []


def resolved(document: Any, reference: str) -> Any:
    for word in reference.removeprefix("#/").split("/"):
        document = document[word]
    return document


def test_it_is_an_asyncapi_document_by_the_official_schema() -> None:
    document = app_on().asyncapi(title="Shop", version="2.1.0")
    validate(document)
    assert document["info"] == {"title": "Shop", "version": "2.1.0"}
    with pytest.raises(jsonschema.ValidationError):
        validate({**document, "asyncapi": "9"})


def test_every_reference_leads_somewhere() -> None:
    document = app_on().asyncapi()
    found = references(document)
    assert len(found) > 20
    for reference in found:
        assert resolved(document, reference) is not None


def test_channels_are_topics_and_operations_handlers() -> None:
    document = app_on().asyncapi()
    assert set(document["channels"]) == {
        *("orders", "bills", "customers", "avro", "notes", "anything", "raw.bytes", "parcels")
    }
    assert document["channels"]["orders"]["bindings"] == {"kafka": {"topic": "orders", "partitions": 4}}
    receiving = [each for each in document["operations"].values() if each["channel"] == {"$ref": "#/channels/orders"}]
    assert [each["bindings"]["kafka"]["groupId"]["const"] for each in receiving] == ["billing", "audit"]
    (sending,) = [each for each in document["operations"].values() if each["action"] == "send"]
    assert sending["channel"] == {"$ref": "#/channels/bills"}
    assert [server["host"] for server in document["servers"].values()] == ["one:9092", "two:9093"]
    assert "servers" not in app_on("log:./data").asyncapi()


def test_payloads_are_the_schemas_of_the_types() -> None:
    document = app_on().asyncapi()
    messages, schemas = document["components"]["messages"], document["components"]["schemas"]
    assert resolved(document, messages["orders"]["payload"]["$ref"])["properties"]["customer"] == {"type": "string"}
    assert messages["orders"]["contentType"] == "application/json"
    assert messages["bills"]["contentType"] == "application/msgpack"
    assert messages["customers"]["payload"]["properties"]["address"] == {"$ref": "#/components/schemas/Address"}
    assert messages["avro"]["payload"]["schema"]["name"] == "Order"
    assert messages["notes"]["payload"] == {"type": "string"}
    assert messages["anything"]["payload"] == {}
    assert "payload" not in messages["raw.bytes"]
    assert schemas["Item"]["properties"].keys() == {"name", "cents"}
    assert schemas["parcels.Item"]["properties"].keys() == {"weight"}, "two types of one name stay two"


def test_a_type_without_a_schema_is_told() -> None:
    class Odd:
        pass

    app = App("memory:", group="g")
    topic = Topic("odd", Order)
    object.__setattr__(topic, "type", Odd)
    app.handle(topic)(lambda value: None)
    with pytest.raises(ConfigError, match="topic 'odd': its type has no JSON schema"):
        app.asyncapi()


PROGRAM = """
import penstock as ps
from dataclasses import dataclass

@dataclass
class Order:
    customer: str

app = ps.App("log:./data", group="billing")

@app.handle(ps.Topic("orders", Order))
def bill(order: Order) -> None: ...

def build():
    other = ps.App("log:./data", group="other")
    other.handle("orders")(lambda value: None)
    return other

if __name__ == "__main__":
    raise SystemExit("it was run")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(PROGRAM)
    return file


def test_the_command_prints_it_without_running_the_program(program: Path) -> None:
    run = Command("memory:")
    document = json.loads(run.well("asyncapi", str(program)).out)
    validate(document)
    assert document["info"]["title"] == "billing"
    assert json.loads(run.well("asyncapi", f"{program}:build", "--title", "T").out)["info"]["title"] == "T"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (":nothing", PROGRAM, "has no app 'nothing'"),
        ("", "", "has no App in a variable"),
        (
            "",
            "import penstock as ps\na = ps.App('memory:', group='a')\nb = ps.App('memory:', group='b')",
            "several apps",
        ),
        ("", "1/0", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_shown_is_told(program: Path, name: str, text: str, complaint: str) -> None:
    program.write_text(text)
    failed = Command("memory:")("asyncapi", f"{program}{name}")
    assert failed.code == 1
    assert complaint in failed.err
