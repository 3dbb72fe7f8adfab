"""Kinesis, against kinesis-local."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from typer.testing import CliRunner

import penstock
from penstock import App, Retry
from penstock.cli.main import app as command
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    MissingExtraError,
    NotAllowedError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Position
from penstock.streams.adapting.aws import LONGEST_PAUSE_S
from penstock.streams.kinesis.encoding import ENVELOPE
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.moto_server import CREDENTIALS, REGION
from tests.seeds import seed_of
from tests.servers import free_ports
from tests.systems.aws_faults import RefusedRecords, backend_of, client_of, events_of, expire, refuse
from tests.systems.kinesis_server import KinesisOutage, KinesisServer

pytestmark = [pytest.mark.system("Kinesis"), pytest.mark.xdist_group("kinesis")]

ENDPOINT: Final = "PENSTOCK_TEST_KINESIS"
_running: list[KinesisOutage] = []


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KinesisServer]:
    with (
        pytest.MonkeyPatch.context() as patch,
        KinesisServer(tmp_path_factory.mktemp("kinesis")) as server,
        TcpProxy(server.port) as proxy,
    ):
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv(ENDPOINT, f"http://{proxy.address}")
        with open_kinesis() as stream:
            system_table.met("Kinesis", f"kinesis-local {server.version}", stream.features)
        _running.append(KinesisOutage(server, proxy))
        yield server
        _running.pop()


@pytest.fixture(autouse=True)
def streams_of_this_test(server: KinesisServer) -> Iterator[None]:
    """kinesis-local writes all it has every second: what tests leave behind would keep it too busy to answer."""
    yield
    client = boto3.client("kinesis", REGION, endpoint_url=server.endpoint)
    for name in client.list_streams()["StreamNames"]:
        client.delete_stream(StreamName=name, EnforceConsumerDeletion=True)


def open_kinesis(**options: Any) -> penstock.Connection:
    """Found by the environment, so that child processes find it, too. Requests may follow each other at once, and hold
    many records of one key: one request each would take minutes on this server."""
    settings = {"request_timeout_s": 10.0, "retry_s": 5.0, "strict_order": False, **options}
    return penstock.connect(url(), **settings)


def url() -> str:
    return f"kinesis://{REGION}?endpoint_url={os.environ[ENDPOINT]}&read_interval_s=0.03"


TestKinesis = conformance.stream(
    open_kinesis, expire=expire, outage=lambda: _running[-1], longest_backoff_s=LONGEST_PAUSE_S
)


def open_in_strict_order() -> penstock.Connection:
    """With the default: at most one record of a key is in a request."""
    return open_kinesis(strict_order=True)


@pytest.mark.sampled(6, among="Kinesis in strict order")
class TestStrictOrder(
    conformance.stream(  # type: ignore[misc]
        open_in_strict_order, expire=expire, outage=lambda: _running[-1], longest_backoff_s=LONGEST_PAUSE_S
    )
):
    test_one_append_takes_many_records = None
    """It would take 5000 requests."""


@pytest.fixture
def stream() -> Iterator[penstock.Connection]:
    with open_kinesis(strict_order=True) as stream:
        yield stream


def values_in(stream: penstock.Connection, topic: str) -> list[bytes | None]:
    return [record.value for record in stream.read(topic)]


def test_records_that_are_refused_are_sent_again_in_the_order_of_their_key(
    stream: penstock.Connection,
) -> None:
    topic, rng = fresh("refused"), random.Random(seed_of())
    stream.create_topic(topic, 2)
    faults = RefusedRecords(events_of(stream), "kinesis.PutRecords", "Records", rng, share=0.3)
    keys = [b"a", b"b", b"c", b"d", b"e"]
    receipts = stream.open_topic(topic).append(
        [NewRecord(topic, b"%d" % number, key) for number in range(12) for key in keys]
    )
    for receipt in receipts:
        receipt.result(60)
    assert faults.refused > 0
    assert 1 < faults.largest <= len(keys), "a request holds one record of each key"
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for record in stream.read(topic):
        found[record.key].append(record.value)
    assert found == {key: [b"%d" % number for number in range(12)] for key in keys}


def test_looking_for_the_bounds_of_a_shard_keeps_to_the_interval_between_reads(stream: penstock.Connection) -> None:
    topic, interval_s = fresh("bounds"), 0.2
    stream.create_topic(topic, 1)
    stream.send(topic, b"x").result(30)
    with open_kinesis(read_interval_s=interval_s) as slow:
        asked_s: list[float] = []
        events_of(slow).register("before-send.kinesis.GetRecords", lambda **_: asked_s.append(time.monotonic()))
        opened = slow.open_topic(topic)
        first, end = opened.span(0)
        assert opened.read(0, first, 10, 0.0).next == end
    assert len(asked_s) >= 3, "each bound is found by reading"
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(asked_s)]
    assert min(gaps_s) >= 0.9 * interval_s, f"requests to one shard follow each other after {min(gaps_s):.3f} s"


def test_a_record_that_is_refused_for_too_long_fails(stream: penstock.Connection) -> None:
    topic = fresh("refused")
    stream.create_topic(topic, 1)
    with open_kinesis(delivery_timeout_s=0.3) as hasty:
        RefusedRecords(events_of(hasty), "kinesis.PutRecords", "Records", random.Random(1), share=1.0)
        with pytest.raises(DeliveryError, match="ProvisionedThroughputExceededException") as caught:
            hasty.send(topic, b"x").result(30)
    assert caught.value.retriable
    assert values_in(stream, topic) == []


def test_throttled_reads_and_writes_succeed_later(stream: penstock.Connection) -> None:
    topic = fresh("throttled")
    stream.create_topic(topic, 1)
    throttled = "ProvisionedThroughputExceededException"
    writes = refuse(events_of(stream), "kinesis.PutRecords", throttled, 2)
    stream.send(topic, b"x").result(30)
    opened = stream.open_topic(topic)
    start = opened.locate(0, Position.EARLIEST)
    reads = refuse(events_of(stream), "kinesis.GetRecords", throttled, 3)
    lookups = refuse(events_of(stream), "kinesis.GetShardIterator", "LimitExceededException", 2)
    assert [record.value for record in opened.read(0, start, 10, 30.0)] == [b"x"]
    assert (writes(), reads(), lookups()) == (0, 0, 0)


def test_an_expired_iterator_is_made_again_where_reading_was(stream: penstock.Connection) -> None:
    topic = fresh("expired")
    stream.create_topic(topic, 1)
    opened = stream.open_topic(topic)
    for number in range(3):
        stream.send(topic, b"%d" % number, key="k").result(30)
    first = opened.read(0, opened.locate(0, Position.EARLIEST), 10, 10.0)
    assert [record.value for record in first] == [b"0", b"1", b"2"]
    stream.send(topic, b"3", key="k").result(30)
    left = refuse(events_of(stream), "kinesis.GetRecords", "ExpiredIteratorException", 1)
    assert [record.value for record in opened.read(0, first.next, 10, 30.0)] == [b"3"]
    assert left() == 0


def test_an_old_shard_that_was_never_read_may_have_lost_records(stream: penstock.Connection) -> None:
    topic = fresh("old")
    stream.create_topic(topic, 1)
    opened = stream.open_topic(topic)
    before = opened.locate(0, Position.EARLIEST)
    stream.send(topic, b"x").result(30)

    def age(parsed: dict[str, Any], **_: Any) -> None:
        parsed["StreamDescriptionSummary"]["RetentionPeriodHours"] = 0

    assert [record.value for record in stream.open_topic(topic).read(0, before, 10, 10.0)] == [b"x"]
    events_of(stream).register("after-call.kinesis.DescribeStreamSummary", age)
    with pytest.raises(OffsetOutOfRangeError, match="was deleted by retention"):
        stream.open_topic(topic).read(0, before, 10, 10.0)


def test_records_of_other_programs_are_read_and_ours_are_theirs(stream: penstock.Connection) -> None:
    topic = fresh("foreign")
    stream.create_topic(topic, 1)
    client = client_of(stream)
    client.put_record(StreamName=topic, PartitionKey="Zoë", Data=b"theirs")
    client.put_record(StreamName=topic, PartitionKey="~b64~?", Data=ENVELOPE + b"no envelope")
    stream.send(topic, b"ours", key="customer").result(30)
    stream.send(topic, None, key=b"\xff" * 500, headers=[("trace", b"1")]).result(30)
    records = list(stream.read(topic))
    assert [(record.key, record.value, record.headers) for record in records] == [
        ("Zoë".encode(), b"theirs", ()),
        (b"~b64~?", ENVELOPE + b"no envelope", ()),
        (b"customer", b"ours", ()),
        (b"\xff" * 500, None, (("trace", b"1"),)),
    ]
    iterator = client.get_shard_iterator(
        StreamName=topic, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    raw = client.get_records(ShardIterator=iterator)["Records"]
    assert (raw[2]["PartitionKey"], raw[2]["Data"]) == ("customer", b"ours")
    assert [int(each["SequenceNumber"]) for each in raw] == [record.offset for record in records]
    assert len(raw[0]["SequenceNumber"]) == 56


def split(stream: penstock.Connection, topic: str, shard: int) -> None:
    client = client_of(stream)
    [found] = [each for each in client.list_shards(StreamName=topic)["Shards"] if int(each["ShardId"][-12:]) == shard]
    low, high = (int(found["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
    client.split_shard(StreamName=topic, ShardToSplit=found["ShardId"], NewStartingHashKey=str((low + high) // 2))


def send_numbers(stream: penstock.Connection, topic: str, first: int) -> None:
    for number in range(first, first + 40):
        stream.send(topic, b"%d" % number, key=b"key %d" % (number % 5))
    stream.flush(60)


def numbers_by_key(values: list[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, list[int]]:
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for key, value in values:
        found[key].append(int(value or b"-1"))
    return found


def is_in_order(numbers: list[int]) -> bool:
    return all(left < right for left, right in itertools.pairwise(numbers))


def test_after_a_resharding_parents_are_read_first(stream: penstock.Connection) -> None:
    topic = fresh("resharded")
    stream.create_topic(topic, 1)
    send_numbers(stream, topic, 0)
    split(stream, topic, 0)
    send_numbers(stream, topic, 40)
    opened = backend_of(stream).open_topic(topic)
    assert list(opened.partitions()) == [0, 1, 2]
    assert [list(opened.parents(partition)) for partition in (0, 1, 2)] == [[], [0], [0]]
    client_of(stream).merge_shards(
        StreamName=topic, ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    send_numbers(stream, topic, 80)
    assert list(opened.partitions()) == [0, 1, 2, 3]
    assert sorted(opened.parents(3)) == [1, 2]
    first, end = opened.span(0)
    batch = opened.read(0, end, 10, 0.0)
    assert (len(batch), batch.next) == (0, end), "an ended shard stays at its end"
    with pytest.raises(DeliveryError, match=r"partition 0 of .* has ended: its shard was split or merged"):
        opened.append([NewRecord(topic, b"x", partition=0)])[0].result(30)
    found = numbers_by_key([(record.key, record.value) for record in stream.read(topic)])
    assert sorted(itertools.chain.from_iterable(found.values())) == list(range(120))
    assert all(map(is_in_order, found.values())), found
    assert first < end


def test_a_group_follows_a_resharding_in_the_order_of_each_key(stream: penstock.Connection, tmp_path: Path) -> None:
    """The shard is split while the group runs: it starts at the end, and misses nothing of the new shards."""
    topic = fresh("followed")
    stream.create_topic(topic, 1)
    app = App(url(), group="billing", checkpoints=f"sqlite:{tmp_path}/checkpoints.db")
    handled: list[tuple[bytes | None, bytes | None]] = []
    begun = threading.Event()

    @app.handle(
        topic,
        start="latest",
        session_timeout_s=1.0,
        commit_interval_s=0.05,
        workers=4,
        order="key",
        on_assigned=lambda _: begun.set(),
    )
    def handle(record: penstock.Record) -> None:
        handled.append((record.key, record.value))

    running = app.start()
    try:
        assert begun.wait(60)
        send_numbers(stream, topic, 0)
        split(stream, topic, 0)
        send_numbers(stream, topic, 40)
        wait_until(lambda: len(handled) >= 80, 90.0)
    finally:
        app.stop()
        running.join(60)
    found = numbers_by_key(handled)
    assert sorted(itertools.chain.from_iterable(found.values())) == list(range(80))
    assert all(map(is_in_order, found.values())), found


def test_a_group_finishes_ended_shards_before_it_begins_new_ones(stream: penstock.Connection, tmp_path: Path) -> None:
    topic = fresh("ended")
    stream.create_topic(topic, 1)
    send_numbers(stream, topic, 0)
    split(stream, topic, 0)
    send_numbers(stream, topic, 40)
    app = App(url(), group="billing", checkpoints=f"sqlite:{tmp_path}/checkpoints.db")
    handled: list[tuple[bytes | None, bytes | None]] = []
    is_new_handled = threading.Event()

    @app.handle(topic, session_timeout_s=1.0, commit_interval_s=0.05, workers=8, order="key")
    def handle(record: penstock.Record) -> None:
        if int(record.value or b"") >= 40:
            is_new_handled.set()
        elif record.value == b"0":
            is_new_handled.wait(3)  # time enough to begin the new shards, if that were allowed
        handled.append((record.key, record.value))

    running = app.start()
    try:
        wait_until(lambda: len(handled) >= 80, 90.0)
    finally:
        app.stop()
        running.join(60)
    found = numbers_by_key(handled)
    assert sorted(itertools.chain.from_iterable(found.values())) == list(range(80))
    assert all(map(is_in_order, found.values())), found


RECORDS: Final = 100
FAILS_ONCE, FAILS_ALWAYS = b"13", b"66"


def run_app(where: str, topic: str, folder: Path, end: str | None) -> None:
    os.environ.update(CREDENTIALS)  # the process that forks may be older than those of this module
    app = App(where, group="billing", checkpoints=f"sqlite:{folder}/checkpoints.db")

    @app.handle(topic, retry=Retry(2, first_delay_s=0.01), session_timeout_s=1.0, commit_interval_s=0.05)
    def handle(value: bytes) -> None:
        if value == FAILS_ALWAYS:
            raise ValueError("this one always fails")
        if value == FAILS_ONCE and not (folder / "failed").exists():
            (folder / "failed").touch()
            raise ValueError("this one fails once")
        with open(folder / "handled", "ab", buffering=0) as file:
            file.write(value + b"\n")

    app.run(end=end)  # type: ignore[arg-type]


def handled_in(folder: Path) -> list[bytes]:
    return (folder / "handled").read_bytes().split() if (folder / "handled").exists() else []


def test_an_app_that_is_killed_loses_nothing(stream: penstock.Connection, tmp_path: Path) -> None:
    """Pointers of 56 digits go into the checkpoints, and out of them in the next process."""
    topic = fresh("orders")
    stream.create_topic(topic, 2)
    for number in range(RECORDS):
        stream.send(topic, b"%d" % number)
    stream.flush(60)
    first = FORKING.Process(target=run_app, args=(url(), topic, tmp_path, None))
    first.start()
    try:
        wait_until(lambda: len(handled_in(tmp_path)) >= 20, 60.0)
    finally:
        first.kill()
        first.join(30)
    second = FORKING.Process(target=run_app, args=(url(), topic, tmp_path, "latest"))
    second.start()
    second.join(90)
    assert second.exitcode == 0
    assert set(handled_in(tmp_path)) == {b"%d" % number for number in range(RECORDS)} - {FAILS_ALWAYS}
    assert (tmp_path / "failed").exists()
    assert set(values_in(stream, f"{topic}.dlq")) == {FAILS_ALWAYS}


def test_the_commands_work_on_it(stream: penstock.Connection) -> None:
    topic, runner = fresh("cli"), CliRunner()
    assert runner.invoke(command, ["topics", "create", topic, "--url", url()]).exit_code == 0
    assert runner.invoke(command, ["produce", topic, "--url", url()], input="one\ntwo\n").exit_code == 0
    consumed = runner.invoke(command, ["consume", topic, "--format", "raw", "--url", url()])
    assert sorted(consumed.output.split()) == ["one", "two"]
    backend_of(stream).delete_topic(topic)
    assert topic not in stream.topics()


def test_a_record_over_the_limit_is_refused_and_the_next_one_is_stored(stream: penstock.Connection) -> None:
    topic = fresh("large")
    stream.create_topic(topic, 1)
    large, small = (stream.send(topic, value, key="k") for value in (b"x" * 1_048_576, b"small"))
    with pytest.raises(DeliveryError, match=r"1048577 bytes is too large .* Kinesis takes 1048576 with the key"):
        large.result(30)
    small.result(30)
    assert values_in(stream, topic) == [b"small"]


def test_a_stream_that_is_not_there(stream: penstock.Connection) -> None:
    with pytest.raises(UnknownTopicError, match=r"has no stream 'missing': create it \(`penstock topics create"):
        stream.open_topic("missing").partitions()
    with pytest.raises(DeliveryError, match="has no stream 'missing'"):
        stream.send("missing", b"x").result(30)
    with pytest.raises(UnknownTopicError, match="has no stream 'missing'"):
        backend_of(stream).delete_topic("missing")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            "kinesis://eu-central-1?speed=3",
            ConfigError,
            "has no setting 'speed'; kinesis: has default_shards, delivery",
        ),
        ("kinesis://eu-central-1?read_interval_s=-1", ConfigError, "read_interval_s=-1.0 must not be negative"),
        ("kinesis://eu-central-1?default_shards=0", ConfigError, "default_shards=0 must be an integer >= 1"),
        ("kinesis://eu-central-1/orders", UrlError, "is not kinesis://REGION"),
        ("kinesis://key:secret@eu-central-1", UrlError, "credentials do not belong into the URL"),
        ("kinesis://eu-central-1?endpoint_url=nonsense", ConfigError, "Invalid endpoint"),
    ],
)
def test_a_wrong_url_is_refused(given: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        penstock.connect(given)
    assert "secret" not in str(caught.value)


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[aws\]'"):
        penstock.connect("kinesis://eu-central-1")


def test_a_server_that_is_not_there() -> None:
    (port,) = free_ports(1)
    with pytest.raises(
        BrokerUnavailableError, match=r"Kinesis at .* cannot be reached: .* Check the network, the region"
    ):
        penstock.connect(f"kinesis://{REGION}?endpoint_url=http://127.0.0.1:{port}&request_timeout_s=0.2")


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("UnrecognizedClientException", BrokerUnavailableError, "Renew or correct the AWS credentials"),
        ("AccessDeniedException", NotAllowedError, "Allow it in the IAM policy"),
    ],
)
def test_credentials_that_are_refused(
    stream: penstock.Connection, code: str, error: type[Exception], message: str
) -> None:
    refuse(events_of(stream), "kinesis.ListStreams", code, 1)
    with pytest.raises(error, match=message) as caught:
        stream.topics()
    assert not getattr(caught.value, "retriable", False)
