from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.checkpoints.objects import dynamodb as _dynamodb
from penstock.checkpoints.objects.dynamodb import DynamoCheckpoints
from penstock.errors import ConfigError, CorruptCheckpointError, MissingExtraError, StoreUnavailableError
from penstock.model import Change, Checkpoint, Lease
from penstock.model.retry import Retry
from penstock.testing.conformance.checkpoints import checkpoint_store
from tests.checkpoints import on_aws, small_objects
from tests.checkpoints.aws_wire import Wire, make_client
from tests.checkpoints.changes import nth_change
from tests.checkpoints.on_aws import claimed, fresh_key, scattered
from tests.checkpoints.spoiling import spoil_version
from tests.moto_server import REGION, shared_endpoint
from tests.seeds import seed_of
from tests.servers import free_ports


@pytest.fixture(autouse=True)
def _moto() -> None:
    shared_endpoint()


def open_dynamodb() -> DynamoCheckpoints:
    shared_endpoint()
    return DynamoCheckpoints(small_objects.dynamodb_url())


TestDynamo = checkpoint_store(open_dynamodb, spoil=spoil_version)


@pytest.fixture
def store() -> Iterator[DynamoCheckpoints]:
    with closing(DynamoCheckpoints(small_objects.dynamodb_url())) as store:
        yield store


def fresh_table() -> str:
    return f"table-{uuid.uuid4().hex[:12]}"


def test_a_writer_killed_before_any_request_leaves_the_old_checkpoint_or_the_new_one() -> None:
    on_aws.check_a_writer_killed_before_any_request("dynamodb", seed_of())


def test_an_owner_paused_anywhere_in_a_save_is_fenced_when_it_goes_on() -> None:
    on_aws.check_a_paused_owner_is_fenced("dynamodb", seed_of())


def test_a_write_whose_answer_was_lost_counts_once() -> None:
    on_aws.check_lost_answers("dynamodb", seed_of())


def test_a_missing_part_is_told_and_not_guessed_at() -> None:
    on_aws.check_a_missing_part_is_told("dynamodb")


def test_a_large_set_of_finished_records_is_split_over_items_and_old_ones_go(store: DynamoCheckpoints) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    runs = scattered(400_000, seed_of())
    for start in (-2, -1):
        store.save(lease, key, Change(Checkpoint(start, runs[-1][1], runs)))
    assert store.load(key) == Checkpoint(-1, runs[-1][1], runs)
    store.release(lease)
    assert len(store._objects.parts(key.group, key.lease_name)) == 1
    assert count_items(f"parts/{key.group}/partition%3Atopic%3A0") >= 2


def test_a_part_of_which_an_item_is_missing_is_not_taken_for_a_whole_one(store: DynamoCheckpoints) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    runs = scattered(400_000, seed_of())
    store.save(lease, key, Change(Checkpoint(-1, runs[-1][1], runs)))
    place = f"parts/{key.group}/partition%3Atopic%3A0"
    client = make_client("dynamodb")
    (part,) = store._objects.parts(key.group, key.lease_name)
    last = count_items(place) - 1
    client.delete_item(TableName=small_objects.TABLE, Key={"place": {"S": place}, "name": {"S": f"{part}/{last:06}"}})
    with (
        closing(DynamoCheckpoints(small_objects.dynamodb_url())) as other,
        pytest.raises(CorruptCheckpointError, match="is missing"),
    ):
        other.load(key)


def count_items(place: str) -> int:
    pages = (
        make_client("dynamodb")
        .get_paginator("query")
        .paginate(
            TableName=small_objects.TABLE,
            KeyConditionExpression="place = :place",
            ExpressionAttributeValues={":place": {"S": place}},
        )
    )
    return sum(page["Count"] for page in pages)


def test_names_of_every_kind_are_kept_apart(store: DynamoCheckpoints) -> None:
    groups = [f"{fresh_key().group}{odd}" for odd in ("", "/", "/..", " ü", "%2F", "?", ".")]
    for group in groups:
        assert store.claim(group, "member:.", "o w n é r", None) == Lease(group, "member:.", "o w n é r", 1, 0)
    for group in groups:
        assert [lease.name for lease in store.leases(group)] == ["member:."]
    assert set(groups) <= set(store.groups())


def test_a_table_is_created_on_request_and_billed_on_demand() -> None:
    table = fresh_table()
    with closing(DynamoCheckpoints(small_objects.dynamodb_url(table))) as store:
        assert store.groups() == []
    described = make_client("dynamodb").describe_table(TableName=table)["Table"]
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_a_table_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere' in eu-central-1.*create=true"):
        DynamoCheckpoints(f"dynamodb://{REGION}/nowhere?endpoint={shared_endpoint()}")


def test_a_table_for_something_else_is_refused() -> None:
    table = fresh_table()
    make_client("dynamodb").create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "customer", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "customer", "KeyType": "HASH"}],
    )
    with pytest.raises(ConfigError, match="it is a table for something else"):
        DynamoCheckpoints(small_objects.dynamodb_url(table))


def test_being_throttled_for_long_is_unavailable_and_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client("dynamodb", attempts=1)
    wire = Wire(client)
    refused: Any = importlib.import_module("botocore.exceptions").ClientError
    monkeypatch.setattr(_dynamodb, "_AGAIN", Retry(first_delay_s=0))
    with closing(DynamoCheckpoints(f"dynamodb://{REGION}/{fresh_table()}?create=true", client=client)) as store:
        key = fresh_key()
        lease = claimed(store, key, "owner")
        store.save(lease, key, nth_change(1, 1))

        def throttle(_: int) -> None:
            raise refused({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, "PutItem")

        wire.arm(before=throttle)
        with pytest.raises(StoreUnavailableError, match="slow down"):
            store.save(lease, key, nth_change(1, 2))
        wire.arm()
        assert store.load(key) == nth_change(1, 1).checkpoint
        store.save(lease, key, nth_change(1, 2))
        assert store.load(key) == nth_change(1, 2).checkpoint


def test_items_that_dynamodb_had_no_room_for_are_written_again(
    store: DynamoCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dynamodb, "_AGAIN", Retry(first_delay_s=0))
    objects: Any = store._objects
    write = objects._client.batch_write_item
    refusals = 3

    def take_some(RequestItems: dict[str, list[Any]]) -> dict[str, Any]:
        nonlocal refusals
        ((table, requests),) = RequestItems.items()
        if refusals:
            refusals -= 1
            write(RequestItems={table: requests[:1]})
            return {"UnprocessedItems": {table: requests[1:]} if requests[1:] else {}}
        return dict(write(RequestItems=RequestItems))

    monkeypatch.setattr(objects._client, "batch_write_item", take_some)
    key = fresh_key()
    lease = claimed(store, key, "owner")
    runs = scattered(400_000, seed_of())
    store.save(lease, key, Change(Checkpoint(-1, runs[-1][1], runs)))
    assert store.load(key) == Checkpoint(-1, runs[-1][1], runs)
    monkeypatch.setattr(objects._client, "batch_write_item", lambda RequestItems: {"UnprocessedItems": RequestItems})
    with pytest.raises(StoreUnavailableError, match="Raise its capacity"):
        store.save(lease, key, Change(Checkpoint(0, runs[-1][1], runs)))


def test_an_endpoint_where_nobody_listens_is_unavailable() -> None:
    (port,) = free_ports(1)
    with pytest.raises(StoreUnavailableError, match="Check the network, the region and the endpoint"):
        DynamoCheckpoints(f"dynamodb://{REGION}/table?endpoint=http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("dynamodb://eu-central-1", "names no region and table"),
        ("dynamodb:///table", "names no region and table"),
        ("dynamodb://eu-central-1/table?create=maybe", "create must be true or false"),
        ("dynamodb://eu-central-1/table?prefix=x", "there is no option 'prefix'; there are create, endpoint"),
    ],
)
def test_a_url_that_cannot_be_understood_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        DynamoCheckpoints(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[aws\]'"):
        DynamoCheckpoints(small_objects.dynamodb_url())
