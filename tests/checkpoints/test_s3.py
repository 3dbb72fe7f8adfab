from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.abc import CheckpointStore
from penstock.checkpoints.objects.s3 import S3Checkpoints
from penstock.errors import ConfigError, CorruptCheckpointError, MissingExtraError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, Lease
from penstock.testing.conformance.checkpoints import checkpoint_store
from tests.checkpoints import on_aws, small_objects
from tests.checkpoints.aws_wire import make_client
from tests.checkpoints.changes import nth_change
from tests.checkpoints.on_aws import claimed, fresh_key, scattered, small
from tests.checkpoints.spoiling import spoil_version
from tests.moto_server import REGION, shared_endpoint
from tests.seeds import seed_of
from tests.servers import free_ports


@functools.cache
def bucket() -> str:
    """The bucket, made when it is first needed."""
    small_objects.make_bucket()
    return small_objects.BUCKET


@pytest.fixture(autouse=True)
def _bucket() -> None:
    shared_endpoint()
    bucket()


def open_s3() -> S3Checkpoints:
    bucket()
    return S3Checkpoints(small_objects.s3_url())


TestS3 = checkpoint_store(open_s3, spoil=spoil_version)


@pytest.fixture
def store() -> Iterator[S3Checkpoints]:
    with closing(S3Checkpoints(small_objects.s3_url())) as store:
        yield store


def test_a_writer_killed_before_any_request_leaves_the_old_checkpoint_or_the_new_one() -> None:
    on_aws.check_a_writer_killed_before_any_request("s3", seed_of())


def test_an_owner_paused_anywhere_in_a_save_is_fenced_when_it_goes_on() -> None:
    on_aws.check_a_paused_owner_is_fenced("s3", seed_of())


def test_a_write_whose_answer_was_lost_counts_once() -> None:
    on_aws.check_lost_answers("s3", seed_of())


def test_a_small_checkpoint_is_one_request(store: S3Checkpoints) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    store.save(lease, key, Change(Checkpoint(1, 2)))
    assert store._objects.parts(key.group, key.lease_name) == []
    assert store.load(key) == Checkpoint(1, 2)


def test_a_large_set_of_finished_records_is_an_object_of_its_own_and_old_ones_go(store: S3Checkpoints) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    runs = scattered(100_000, seed_of())
    for start in (-3, -2, -1):
        store.save(lease, key, Change(Checkpoint(start, runs[-1][1], runs)))
    assert store.load(key) == Checkpoint(-1, runs[-1][1], runs)
    store.release(lease)
    assert len(store._objects.parts(key.group, key.lease_name)) == 1


def test_only_manifests_that_changed_are_read_again() -> None:
    with small("s3") as (store, _):
        key = fresh_key()
        group = key.group
        lease = claimed(store, key, "owner")
        for number in range(5):
            assert store.claim(group, f"member:{number}", "owner", None) is not None
        assert len(store.leases(group)) == 6
        gets: list[str] = []
        objects: Any = store._objects
        get = objects._get

        def count(name: str) -> Any:
            gets.append(name)
            return get(name)

        objects._get = count
        store.renew(lease)
        assert len(store.leases(group)) == 6
        assert [each.rpartition("/")[2] for each in gets] == ["partition%3Atopic%3A0"]


def test_names_of_every_kind_are_kept_apart(store: S3Checkpoints) -> None:
    groups = [f"{fresh_key().group}{odd}" for odd in ("", "/", "/..", " ü", "%2F", "?", ".")]
    for group in groups:
        assert store.claim(group, "member:.", "o w n é r", None) == Lease(group, "member:.", "o w n é r", 1, 0)
        assert store.claim(group, "..", "owner", None) == Lease(group, "..", "owner", 1, 0)
    for group in groups:
        assert [lease.name for lease in store.leases(group)] == ["..", "member:."]
    assert set(groups) <= set(store.groups())


@pytest.mark.parametrize("condition", ["IfNoneMatch", "IfMatch"])
def test_a_store_that_ignores_conditions_is_refused_at_opening(condition: str) -> None:
    client = make_client("s3")

    def drop(params: dict[str, Any], **_: object) -> None:
        params.pop(condition, None)

    client.meta.events.register("provide-client-params.s3.PutObject", drop)
    with pytest.raises(ConfigError, match="does not honour If-Match and If-None-Match"):
        S3Checkpoints(f"s3://{small_objects.BUCKET}/probe", client=client)


def test_a_store_without_conditional_deletes_keeps_what_is_left_of_a_lease() -> None:
    client = make_client("s3")

    def drop(params: dict[str, Any], **_: object) -> None:
        params.pop("IfMatch", None)

    client.meta.events.register("provide-client-params.s3.DeleteObject", drop)
    with closing(S3Checkpoints(f"s3://{small_objects.BUCKET}/tombs", client=client)) as store:
        group = fresh_key().group
        lease = store.claim(group, "member:1", "owner", None)
        assert lease is not None
        store.forget_lease(lease)
        assert store.leases(group) == []
        assert store.groups() == []
        assert store.claim(group, "member:1", "other", None) == Lease(group, "member:1", "other", 2, 0)


def test_a_damaged_manifest_is_told_to_who_asks_for_it_and_nobody_else(store: S3Checkpoints) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    store.save(lease, key, nth_change(1, 1))
    client = make_client("s3")
    name = f"some/prefix/heads/{key.group}/partition%3Atopic%3A0"
    body = bytearray(client.get_object(Bucket=small_objects.BUCKET, Key=name)["Body"].read())
    body[-3] ^= 1
    client.put_object(Bucket=small_objects.BUCKET, Key=name, Body=bytes(body))
    with pytest.raises(CorruptCheckpointError, match="its checksum is wrong"):
        store.load(key)
    with pytest.raises(CorruptCheckpointError):
        store.save(lease, key, nth_change(1, 2))
    assert key.group in store.groups()


def test_a_large_checkpoint_whose_object_is_damaged_or_gone_can_be_replaced(store: S3Checkpoints) -> None:
    runs = scattered(100_000, seed_of())
    for damage in (spoil_version, remove_parts):
        key = fresh_key()
        lease = claimed(store, key, "owner")
        store.save(lease, key, Change(Checkpoint(-1, runs[-1][1], runs)))
        damage(store, key)
        with closing(open_s3()) as other:
            with pytest.raises(CorruptCheckpointError, match=key.group):
                other.load(key)
            lease = claimed(other, key, "other")
            other.save(lease, key, Change(Checkpoint(7, 8)))
            assert other.load(key) == Checkpoint(7, 8)


def remove_parts(store: CheckpointStore, key: CheckpointKey) -> None:
    """What a careless lifecycle rule does."""
    assert isinstance(store, S3Checkpoints)
    store._objects.remove_parts(key.group, key.lease_name, store._objects.parts(key.group, key.lease_name))


def test_a_missing_part_is_told_and_not_guessed_at() -> None:
    on_aws.check_a_missing_part_is_told("s3")


def test_a_bucket_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="Create the bucket 'penstock-nowhere'"):
        S3Checkpoints(small_objects.s3_url("penstock-nowhere"))


def test_an_endpoint_where_nobody_listens_is_unavailable() -> None:
    (port,) = free_ports(1)
    with pytest.raises(StoreUnavailableError, match="Check the network, the region and the endpoint"):
        S3Checkpoints(f"s3://bucket/x?region={REGION}&endpoint=http://127.0.0.1:{port}")


def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.session.Session.get_credentials", lambda _: None)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID"):
        S3Checkpoints(small_objects.s3_url())


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3://", "names no bucket"),
        ("s3://bucket/x?colour=red", "there is no option 'colour'; there are endpoint, region"),
        ("s3://bucket/x?region=", "the option 'region' has no value"),
        ("s3://key:secret@bucket/x", "credentials come from the AWS chain"),
        ("https://bucket/x", "does not begin with s3://"),
        ("s3://bucket/x?endpoint=nonsense", "nonsense"),
    ],
)
def test_a_url_that_cannot_be_understood_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        S3Checkpoints(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[aws\]'"):
        S3Checkpoints(small_objects.s3_url())
