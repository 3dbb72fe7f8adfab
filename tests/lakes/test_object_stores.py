"""Lake tables on S3: moto's, with conditional writes as AWS has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pyarrow as pa
import pytest

from penstock.lakes import Compaction, LakeTable
from penstock.lakes.commits import Move
from tests import moto_server
from tests.lakes.readers import FORMATS, uri_of
from tests.moto_server import CREDENTIALS, REGION


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The endpoint, and a bucket of this test."""
    endpoint = moto_server.shared_endpoint()
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
    name = tmp_path.name.replace("_", "-").lower()[-60:].strip("-")
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    yield endpoint, name
    client.close()


@pytest.mark.parametrize("form", FORMATS)
def test_writers_that_race_on_s3_commit_each_row_once(form: str, tmp_path: Path, bucket: tuple[str, str]) -> None:
    uri_of(form, tmp_path)  # skips the test without the library
    endpoint, name = bucket
    if form == "delta":
        options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true"}
        table = LakeTable(f"delta:s3://{name}/orders", key="id", storage_options=options)
    else:
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"s3://{name}/lake",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "s3.endpoint": endpoint,
            "s3.region": REGION,
            "s3.access-key-id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        }
        table = LakeTable("iceberg:shop.orders", key="id", catalog=catalog)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            opened = table.open()
            for step in range(4):
                rows = pa.table({"id": pa.array([2 * step, 2 * step + 1], pa.int64())})
                opened.evolve(rows.schema)
                if not opened.commit(lambda rows=rows: rows, [Move("app", step or None, step + 1)], {}):  # type: ignore[misc]
                    return  # the other one is further
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    opened = table.open()
    assert opened.last_version("app") == 4
    assert opened.compact(Compaction(small_files=2, retain_s=0)) >= 4
    if form == "delta":
        import deltalake

        found = deltalake.DeltaTable(
            f"s3://{name}/orders", storage_options=dict(table.storage_options)
        ).to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        found = load_catalog("penstock", **catalog).load_table("shop.orders").scan().to_arrow()
    assert sorted(found.column("id").to_pylist()) == list(range(8))
