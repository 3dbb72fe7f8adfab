"""Stores on AWS as tests open them: with limits so small that a few saves write, merge and remove parts."""

from __future__ import annotations

from typing import Any

from penstock.checkpoints.objects.dynamodb import DynamoCheckpoints
from penstock.checkpoints.objects.s3 import S3Checkpoints
from penstock.checkpoints.objects.store import VersionedCheckpoints
from tests.checkpoints.aws_wire import make_client
from tests.moto_server import REGION, shared_endpoint

BUCKET = "penstock-checkpoints"
TABLE = "penstock-checkpoints"


def s3_url(bucket: str = BUCKET) -> str:
    return f"s3://{bucket}/some/prefix?region={REGION}&endpoint={shared_endpoint()}"


def dynamodb_url(table: str = TABLE) -> str:
    return f"dynamodb://{REGION}/{table}?create=true&endpoint={shared_endpoint()}"


def make_bucket() -> None:
    """Make the bucket, if no process of this test run has."""
    client = make_client("s3")
    if BUCKET not in [each["Name"] for each in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    client.close()


def open_small(service: str, client: Any) -> VersionedCheckpoints:
    """A store with this client. The bucket must be there."""
    store: VersionedCheckpoints
    if service == "s3":
        store = S3Checkpoints(f"s3://{BUCKET}/small", client=client)
    else:
        store = DynamoCheckpoints(f"dynamodb://{REGION}/{TABLE}?create=true", client=client)
    store._objects.new_bytes = 150
    store._objects.inline_bytes = 400
    return store
