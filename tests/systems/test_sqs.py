"""SQS, against ElasticMQ."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from penstock import App, Retry
from penstock.abc import Delivery, Feature, Outcome, Queue
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, UnknownTopicError, UrlError
from penstock.model import NewRecord
from penstock.queues import open_queue
from penstock.queues.sqs import SqsQueue
from penstock.streams.adapting.aws import LONGEST_PAUSE_S
from penstock.testing import TcpProxy
from tests import system_table
from tests.clients.names import fresh
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.moto_server import CREDENTIALS, REGION
from tests.seeds import seed_of
from tests.servers import free_ports
from tests.systems.aws_faults import RefusedRecords, refuse
from tests.systems.elasticmq_server import ElasticMqOutage, ElasticMqServer
from tests.systems.expiring import other_cases, waiting_cases

pytestmark = [pytest.mark.system("SQS"), pytest.mark.xdist_group("sqs")]

ENDPOINT: Final = "PENSTOCK_TEST_SQS"
VISIBILITY_S: Final = 2
_running: list[ElasticMqOutage] = []


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticMqServer]:
    with (
        pytest.MonkeyPatch.context() as patch,
        ElasticMqServer(tmp_path_factory.mktemp("elasticmq")) as server,
        TcpProxy(server.port) as proxy,
    ):
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv(ENDPOINT, f"http://{proxy.address}")
        system_table.met("SQS", f"ElasticMQ {server.version}", opened("features").features)
        _running.append(ElasticMqOutage(server, proxy))
        yield server
        _running.pop()


def opened(name: str, endpoint: str | None = None, **options: Any) -> SqsQueue:
    """Found by the environment, so that child processes find it, too."""
    settings = {"create": True, "visibility_timeout_s": VISIBILITY_S, "request_timeout_s": 4.0, **options}
    found = open_queue(url(name, endpoint), **settings)
    assert isinstance(found, SqsQueue)
    return found


def url(name: str, endpoint: str | None = None) -> str:
    return f"sqs://{REGION}/{name}?endpoint_url={endpoint or os.environ[ENDPOINT]}"


def open_standard(visibility_s: int, folder: Path) -> Queue:
    return opened(folder.name, visibility_timeout_s=visibility_s)


def open_fifo(visibility_s: int, folder: Path) -> Queue:
    return opened(f"{folder.name}.fifo", visibility_timeout_s=visibility_s)


SUITE: Final[Mapping[str, Any]] = {
    "ordered": False,
    "outage": lambda: _running[-1],
    "longest_backoff_s": LONGEST_PAUSE_S,
}
TestStandardQueue = other_cases(open_standard, **SUITE)
TestStandardQueueExpiring = waiting_cases(open_standard, **SUITE)
TestFifoQueue = other_cases(open_fifo, **SUITE)
TestFifoQueueExpiring = waiting_cases(open_fifo, **SUITE)


def client_of(queue: SqsQueue) -> Any:
    """The boto3 client: another program, as far as messages go."""
    return queue._client._client


def with_dead_letters(name: str, most_receives: int = 100) -> tuple[SqsQueue, SqsQueue]:
    """A queue and the one that its redrive policy names. Both are of one kind."""
    stem, dot, kind = name.partition(".")
    letters = opened(f"{stem}-letters{dot}{kind}")
    queue = opened(name)
    arn = client_of(letters).get_queue_attributes(QueueUrl=letters._url, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": most_receives}
    client_of(queue).set_queue_attributes(QueueUrl=queue._url, Attributes={"RedrivePolicy": json.dumps(policy)})
    queue.close()
    return opened(name), letters


def receive_until(queue: SqsQueue, count: int, attempts: int = 30) -> list[Delivery]:
    found: list[Delivery] = []
    for _ in range(attempts):
        found += queue.receive(count - len(found), 2.0)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} messages came")


def values_of(deliveries: Sequence[Delivery]) -> list[bytes | None]:
    return [delivery.record.value for delivery in deliveries]


@pytest.mark.parametrize("kind", ["", ".fifo"])
def test_what_is_rejected_is_in_the_queue_that_the_redrive_policy_names(kind: str) -> None:
    queue, letters = with_dead_letters(fresh("orders") + kind)
    assert Feature.DEAD_LETTERS in queue.features
    assert Feature.DEAD_LETTERS not in letters.features
    queue.send([NewRecord("", b"\xff%d" % number, b"key %d" % number, (("h", b"1"),)) for number in range(12)])
    assert queue.settle_all(receive_until(queue, 12), Outcome.REJECT, reason="no such customer\x00") == []
    found = receive_until(letters, 12)
    assert sorted(map(str, values_of(found))) == sorted(str(b"\xff%d" % number) for number in range(12))
    assert {delivery.record.headers for delivery in found} == {(("h", b"1"), ("penstock.reason", b"no such customer"))}
    assert {delivery.record.key for delivery in found} == {b"key %d" % number for number in range(12)}
    letters.settle_all(found, Outcome.DONE)
    assert queue.receive(10, VISIBILITY_S + 0.5) == []


def test_sqs_itself_moves_what_was_received_too_often() -> None:
    queue, letters = with_dead_letters(fresh("orders"), most_receives=2)
    queue.send([NewRecord("", b"poison")])
    for attempt in (1, 2):
        [delivery] = receive_until(queue, 1)
        assert delivery.attempt == attempt
        queue.settle(delivery, Outcome.RETRY)
    assert queue.receive(1, 1.0) == []
    assert values_of(receive_until(letters, 1)) == [b"poison"]


def test_a_fifo_queue_keeps_the_order_of_each_key_though_messages_are_refused() -> None:
    queue = opened(fresh("orders") + ".fifo")
    faults = RefusedRecords(
        client_of(queue).meta.events, "sqs.SendMessageBatch", "Entries", random.Random(seed_of()), share=0.3
    )
    keys = [b"a", b"b", b"\xff", b"x" * 200]
    queue.send([NewRecord("", b"%d" % number, key) for number in range(8) for key in keys])
    assert faults.refused > 0
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    while sum(map(len, found.values())) < 32:  # ends: receive_until fails when nothing comes
        [delivery] = receive_until(queue, 1)
        found[delivery.record.key].append(delivery.record.value)
        queue.settle(delivery, Outcome.DONE)
    assert found == {key: [b"%d" % number for number in range(8)] for key in keys}


def test_messages_that_are_refused_are_sent_again_or_raise() -> None:
    queue = opened(fresh("orders"), retry_s=5.0)
    faults = RefusedRecords(
        client_of(queue).meta.events, "sqs.SendMessageBatch", "Entries", random.Random(seed_of()), share=0.3
    )
    queue.send([NewRecord("", b"%d" % number) for number in range(45)])
    assert faults.refused > 0
    assert faults.largest == 10
    assert set(values_of(receive_until(queue, 45))) == {b"%d" % number for number in range(45)}
    with closing(opened("refused", retry_s=0.2)) as hasty:
        RefusedRecords(client_of(hasty).meta.events, "sqs.SendMessageBatch", "Entries", random.Random(1), share=1.0)
        with pytest.raises(
            DeliveryError, match=r"refused send_message_batch for queue 'refused'.*InternalError"
        ) as caught:
            hasty.send([NewRecord("", b"x")])
    assert caught.value.retriable


def test_throttled_requests_succeed_later() -> None:
    queue = opened(fresh("orders"))
    left = refuse(client_of(queue).meta.events, "sqs.SendMessageBatch", "RequestThrottled", 2)
    queue.send([NewRecord("", b"x")])
    [delivery] = receive_until(queue, 1)
    settling = refuse(client_of(queue).meta.events, "sqs.DeleteMessageBatch", "ThrottlingException", 2)
    queue.settle(delivery, Outcome.DONE)
    assert (left(), settling()) == (0, 0)


def test_messages_of_other_programs_are_read_and_ours_are_theirs() -> None:
    queue = opened(fresh("orders"))
    client = client_of(queue)
    attributes = {
        "text": {"DataType": "String", "StringValue": "é"},
        "number": {"DataType": "Number.int", "StringValue": "7"},
        "data": {"DataType": "Binary.gif", "BinaryValue": b"\xff"},
    }
    client.send_message(QueueUrl=queue._url, MessageBody="théirs", MessageAttributes=attributes)
    [delivery] = receive_until(queue, 1)
    record = delivery.record
    assert (record.key, record.value) == (None, "théirs".encode())
    assert set(record.headers) == {("text", "é".encode()), ("number", b"7"), ("data", b"\xff")}
    assert record.timestamp_ms is not None
    queue.settle(delivery, Outcome.DONE)
    headers = (("trace", b"1"), ("raw", b"\xff"))
    queue.send([NewRecord("", b"ours", b"key", headers, timestamp_ms=1_700_000_000_123)])
    answer = client.receive_message(QueueUrl=queue._url, WaitTimeSeconds=2, MessageAttributeNames=["All"])
    [message] = answer["Messages"]
    assert message["Body"] == "ours"
    assert message["MessageAttributes"]["trace"] == {"DataType": "String", "StringValue": "1"}
    assert message["MessageAttributes"]["raw"]["BinaryValue"] == b"\xff"


def test_what_a_message_cannot_hold_as_it_is_comes_back_as_it_was() -> None:
    queue = opened(fresh("orders"))
    many = tuple((f"name {number}", b"") for number in range(30))
    twice = (("again", b"1"), ("again", None), ("AWS.x", b"2"), ("penstock.key", b"3"))
    sent = [
        NewRecord("", None, b"", many, 1_700_000_000_123),
        NewRecord("", b"", None, twice),
        NewRecord("", b"-", b"\x00"),
        NewRecord("", b"a\x00b"),
    ]
    queue.send(sent)
    found = {delivery.record.value: delivery.record for delivery in receive_until(queue, 4)}
    for record in sent:
        assert (found[record.value].key, found[record.value].headers) == (record.key, record.headers)
    assert found[None].timestamp_ms == 1_700_000_000_123


def test_deliveries_are_settled_and_extended_ten_at_a_time() -> None:
    queue = opened(fresh("orders"))
    queue.send([NewRecord("", b"%d" % number) for number in range(25)])
    calls: list[str] = []
    client_of(queue).meta.events.register("before-call.sqs", lambda model, **_: calls.append(model.name))
    held = receive_until(queue, 25)
    calls.clear()
    assert queue.extend(held) == []
    assert queue.settle_all(held, Outcome.DONE) == []
    assert calls == ["ChangeMessageVisibilityBatch"] * 3 + ["DeleteMessageBatch"] * 3
    assert queue.settle_all(held, Outcome.DONE) == held


def test_what_is_held_when_the_queue_is_closed_comes_at_once() -> None:
    name = fresh("orders")
    queue = opened(name, visibility_timeout_s=600)
    queue.send([NewRecord("", b"x")])
    receive_until(queue, 1)
    queue.close()
    assert values_of(receive_until(opened(name), 1)) == [b"x"]


def test_a_message_over_the_limit_is_refused_before_any_is_sent() -> None:
    queue = opened(fresh("orders"))
    with pytest.raises(DeliveryError, match=r"record 1 of 2 is too large for queue .* and the queue takes 262144"):
        queue.send([NewRecord("", b"small"), NewRecord("", b"x" * 262_145)])
    queue.send([NewRecord("", b"x" * 262_144)])
    assert [len(value or b"") for value in values_of(receive_until(queue, 1))] == [262_144]


def test_a_queue_that_is_not_there() -> None:
    with pytest.raises(UnknownTopicError, match="has no queue 'missing': create it, add create=true to the URL"):
        opened("missing", create=False)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("sqs://eu-central-1/q?speed=3", ConfigError, "has no setting 'speed'; sqs: has create, endpoint_url"),
        ("sqs://eu-central-1/q?visibility_timeout_s=0", ConfigError, "visibility_timeout_s=0 must be 1 to 43200"),
        ("sqs://eu-central-1/q?request_timeout_s=1", ConfigError, "request_timeout_s=1.0 must be at least 2"),
        ("sqs://eu-central-1", UrlError, "is not sqs://REGION/QUEUE"),
        ("sqs://key:secret@eu-central-1/q", UrlError, "credentials do not belong into the URL"),
    ],
)
def test_a_wrong_url_is_refused(given: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        open_queue(given)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there() -> None:
    (port,) = free_ports(1)
    with pytest.raises(
        BrokerUnavailableError, match=r"Amazon SQS at .* cannot be reached: .* Check the network, the region"
    ):
        opened("jobs", f"http://127.0.0.1:{port}", retry_s=0.1)


def test_credentials_that_are_refused() -> None:
    queue = opened(fresh("orders"))
    refuse(client_of(queue).meta.events, "sqs.ReceiveMessage", "InvalidClientTokenId", 1)
    with pytest.raises(BrokerUnavailableError, match="Renew or correct the AWS credentials") as caught:
        queue.receive(1, 0.0)
    assert not caught.value.retriable


RECORDS: Final = 60
FAILS_ONCE, FAILS_ALWAYS = b"13", b"66"


def run_app(where: str, folder: Path, count: int) -> None:
    """Handle a queue until so many records were handled, by this process or an earlier one."""
    os.environ.update(CREDENTIALS)  # the process that forks may be older than those of this module
    app = App(group="billing")

    @app.handle(f"{where}&visibility_timeout_s={VISIBILITY_S}", retry=Retry(2, first_delay_s=0.01), workers=4)
    def handle(value: bytes) -> None:
        if value == FAILS_ALWAYS:
            raise penstock.Reject("this one always fails")
        if value == FAILS_ONCE and not (folder / "failed").exists():
            (folder / "failed").touch()
            raise ValueError("this one fails once")
        with open(folder / "handled", "ab", buffering=0) as file:
            file.write(value + b"\n")
        if len(set(handled_in(folder))) >= count:
            app.stop()

    app.run()


def handled_in(folder: Path) -> list[bytes]:
    return (folder / "handled").read_bytes().split() if (folder / "handled").exists() else []


def test_an_app_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    queue, letters = with_dead_letters(fresh("orders"))
    expected = {b"%d" % number for number in range(RECORDS)}
    queue.send([NewRecord("", value) for value in sorted({*expected, FAILS_ALWAYS})])
    first = FORKING.Process(target=run_app, args=(url(queue.name), tmp_path, RECORDS + 1))
    first.start()
    try:
        wait_until(lambda: len(handled_in(tmp_path)) >= 20, 60.0)
    finally:
        first.kill()
        first.join(30)
    second = FORKING.Process(target=run_app, args=(url(queue.name), tmp_path, RECORDS))
    second.start()
    second.join(90)
    assert second.exitcode == 0
    assert set(handled_in(tmp_path)) == expected
    assert (tmp_path / "failed").exists()
    assert values_of(receive_until(letters, 1)) == [FAILS_ALWAYS]
    again = values_of(queue.receive(RECORDS, VISIBILITY_S + 0.5))
    assert set(again) <= expected, "only what the killed app had handled and not settled comes again"
    assert len(again) < RECORDS, "what was settled does not"
