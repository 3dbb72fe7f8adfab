"""Google Pub/Sub by `pubsub:` URLs, on Google's own fake, behind a network that breaks."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.api_core.exceptions import AlreadyExists
from google.protobuf import any_pb2
from google.pubsub_v1 import PublisherClient, SubscriberClient, types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]

import penstock as ps
from penstock.abc import Feature, Outcome
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    NotAllowedError,
    RecordTooLargeError,
    StaleDeliveryError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import Headers, NewRecord
from penstock.queues import open_queue
from penstock.queues.pubsub import PubsubQueue
from penstock.queues.pubsub.client import LONGEST_BACKOFF_S
from penstock.queues.pubsub.queue import PubsubDelivery
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.systems.killed_queue_app import check_every_record_is_handled
from tests.systems.pubsub_server import PubsubServer

pytestmark = [pytest.mark.system("Google Pub/Sub"), pytest.mark.xdist_group("pubsub")]

ADDRESS = "PENSTOCK_TEST_PUBSUB"
DEADLINE_S = 2
"""The fake allows shorter ack deadlines than Pub/Sub does."""
WAIT_S = 60.0


class Outage:
    """The fake keeps everything in memory, so that killing it proves nothing."""

    def __init__(self, proxy: TcpProxy) -> None:
        self.proxy = proxy

    def kill(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError


_running: list[Outage] = []


def outage() -> Outage:
    return _running[-1]


@pytest.fixture(scope="module")
def pubsub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubsubServer]:
    with PubsubServer(tmp_path_factory.mktemp("pubsub")) as server, TcpProxy(server.port) as proxy:
        os.environ[ADDRESS] = proxy.address
        _running.append(Outage(proxy))
        queue = new_queue()
        system_table.met("Google Pub/Sub", f"pstest {server.version}, a fake by Google", queue.features)
        queue.close()
        yield server
        _running.pop()
        del os.environ[ADDRESS]


class Clients:
    """Google's own clients of the server."""

    def __init__(self) -> None:
        self.channel = grpc.insecure_channel(os.environ[ADDRESS])
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))

    def create(self, name: str, **settings: Any) -> None:
        """A topic, and a subscription of it with the same name."""
        topic, subscription = f"projects/p/topics/{name}", f"projects/p/subscriptions/{name}"
        self.publisher.create_topic(name=topic)
        settings = {"ack_deadline_seconds": DEADLINE_S, **settings}
        self.subscriber.create_subscription(request={"name": subscription, "topic": topic, **settings})

    def close(self) -> None:
        self.channel.close()


def url(name: str, parameters: str = "") -> str:
    return f"pubsub://p/{name}?emulator={os.environ[ADDRESS]}&{parameters}"


def new_queue(parameters: str = "", **settings: Any) -> PubsubQueue:
    """A queue on a new subscription."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    clients = Clients()
    clients.create(name, **settings)
    clients.close()
    queue = open_queue(url(name, parameters))
    assert isinstance(queue, PubsubQueue)
    return queue


def open_by_folder(folder: Path) -> PubsubQueue:
    """The folder's name is the queue's, and the environment says where the server is: child processes find it, too."""
    clients = Clients()
    with contextlib.suppress(AlreadyExists):  # each case opens its queue several times
        clients.create(folder.name)
    clients.close()
    queue = open_queue(url(folder.name))
    assert isinstance(queue, PubsubQueue)
    return queue


@pytest.mark.usefixtures("pubsub")
class TestPubsubQueue(
    conformance.queue(  # type: ignore[misc]
        open_by_folder,
        visibility_s=float(DEADLINE_S),
        ordered=False,
        outage=outage,
        longest_backoff_s=LONGEST_BACKOFF_S,
    )
):
    test_no_record_is_lost_when_the_server_is_killed = None
    """The fake keeps everything in memory: nothing would be left."""


@pytest.mark.usefixtures("pubsub")
def test_values_keys_and_headers_of_any_kind_come_back() -> None:
    queue = new_queue()
    several: list[Headers] = [
        (),
        (("twice", b"1"), ("twice", None), ("once", b"\xff")),
        (("goog-reserved", b"1"), ("penstock-key", b"mine"), ("", b"")),
        (("long", b"x" * 5_000), ("\u00fc" * 200, b"")),
        (("plain", "\u20ac".encode()), ("empty", b"")),
    ]
    for value, key in ((None, b"\0"), (b"", b""), (bytes(range(256)), None)):
        queue.send([NewRecord("queue", value, key, headers, 0) for headers in several])
        for delivery in _receive(queue, len(several)):
            record = delivery.record
            assert (record.value, record.key, record.timestamp_ms) == (value, key, 0)
            assert sorted(record.headers, key=repr) in [sorted(headers, key=repr) for headers in several]
    queue.close()


@pytest.mark.usefixtures("pubsub")
def test_messages_of_other_programs_are_read_and_ours_by_them() -> None:
    queue = new_queue()
    clients = Clients()
    message = {"data": b"plain", "attributes": {"n": "5", "text": "\u00fc"}, "ordering_key": "k"}
    clients.publisher.publish(request={"topic": f"projects/p/topics/{queue.name}", "messages": [message]})
    [delivery] = _receive(queue, 1)
    assert (delivery.record.key, delivery.record.value) == (b"k", b"plain")
    assert dict(delivery.record.headers) == {"n": b"5", "text": "\u00fc".encode()}
    assert abs((delivery.record.timestamp_ms or 0) - time.time() * 1000) < 600_000, "when it was published"

    queue.close()
    queue = new_queue()
    queue.send([NewRecord("queue", b"ours", b"k", (("n", b"1"),), 7)])
    path = f"projects/p/subscriptions/{queue.name}"
    [received] = clients.subscriber.pull(request={"subscription": path, "max_messages": 1}).received_messages
    assert received.message.data == b"ours"
    assert dict(received.message.attributes) == {"penstock-key": "k", "penstock-timestamp": "7", "n": "1"}
    clients.close()
    queue.close()


@pytest.mark.usefixtures("pubsub")
def test_a_rejected_record_goes_to_the_dead_letter_topic_of_the_policy() -> None:
    letters = new_queue()
    policy = {"dead_letter_topic": f"projects/p/topics/{letters.name}", "max_delivery_attempts": 5}
    queue = new_queue(dead_letter_policy=policy)
    assert Feature.DEAD_LETTERS in queue.features
    queue.send([NewRecord("queue", b"bad", b"key", (("reason", b"none"),), 1_700_000_000_123)])
    [delivery] = _take(queue, 1)
    assert delivery.attempt == 1
    queue.settle(delivery, Outcome.RETRY)
    [again] = _take(queue, 1)
    assert (again.attempt, again.record.offset) == (2, delivery.record.offset)
    assert not queue.settle_all([again], Outcome.REJECT, reason="too old " * 1000)
    [dead] = _receive(letters, 1)
    assert (dead.record.key, dead.record.value, dead.record.timestamp_ms) == (b"key", b"bad", 1_700_000_000_123)
    headers = dict(dead.record.headers)
    assert headers["reason"] == b"none"
    assert headers["CloudPubSubDeadLetterSourceSubscription"] == queue.name.encode()
    assert headers["penstock-reason"] == (b"too old " * 1000)[:1024]
    for each in (queue, letters):
        each.close()


@pytest.mark.usefixtures("pubsub")
def test_records_of_one_key_keep_their_order_with_ordering_keys() -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    queue = open_queue(url(name, f"create=true&topic={name}&ordering=true&ack_deadline_s=10"))
    assert isinstance(queue, PubsubQueue)
    assert queue.visibility_timeout_s == 10
    keys = [b"a", b"\xff", b"long" * 250]
    for number in range(5):
        queue.send([NewRecord("queue", b"%d" % number, key) for key in keys])
    seen: dict[bytes | None, list[bytes | None]] = {}
    for delivery in _receive(queue, 15):
        seen.setdefault(delivery.record.key, []).append(delivery.record.value)
    assert seen == {key: [b"0", b"1", b"2", b"3", b"4"] for key in keys}
    queue.close()


@pytest.mark.usefixtures("pubsub")
def test_many_records_are_sent_in_several_requests() -> None:
    queue = new_queue()
    queue.send([NewRecord("queue", b"%d" % number) for number in range(2_500)])
    queue.send([NewRecord("queue", bytes(4_000_000)) for _ in range(3)])
    values = Counter(delivery.record.value for delivery in _receive(queue, 2_503))
    assert values.pop(bytes(4_000_000)) == 3
    assert values == Counter(b"%d" % number for number in range(2_500))
    queue.close()


@pytest.mark.usefixtures("pubsub")
def test_what_is_not_settled_is_there_for_others_when_the_queue_closes() -> None:
    queue = new_queue(ack_deadline_seconds=600)
    queue.send([NewRecord("queue", b"1"), NewRecord("queue", b"2")])
    _take(queue, 1)
    queue.close()
    other = open_queue(url(queue.name))
    assert isinstance(other, PubsubQueue)
    assert {delivery.record.value for delivery in _receive(other, 2)} == {b"1", b"2"}
    other.close()


@pytest.mark.usefixtures("pubsub")
def test_a_url_without_a_subscription_can_only_send(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = new_queue()
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", os.environ[ADDRESS])
    sender = open_queue(f"pubsub://other?topic=projects/p/topics/{queue.name}")
    sender.send([NewRecord("queue", b"1")])
    assert _receive(queue, 1)[0].record.value == b"1"
    with pytest.raises(ConfigError, match="is a topic, from which nothing can be received: name a subscription"):
        sender.receive(1, 0.0)
    sender.close()
    queue.close()


@pytest.mark.usefixtures("pubsub")
def test_what_cannot_work_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = os.environ[ADDRESS]
    with pytest.raises(UnknownTopicError, match=r"has no projects/p/subscriptions/missing: create it, add create=true"):
        open_queue(url("missing"))
    for wrong, reason in (
        ("pubsub://p", "names neither a subscription nor a topic"),
        ("pubsub:q", "is not pubsub://PROJECT/SUBSCRIPTION"),
        (f"pubsub://{address}/q", "for an emulator add .emulator=HOST:PORT"),
        ("pubsub://me:secret@p/q", "credentials do not belong into the URL: set credentials_file"),
    ):
        with pytest.raises(UrlError, match=reason) as refused:
            open_queue(wrong)
        assert "secret" not in str(refused.value)
    for parameters, reason in (
        ("topik=1", r"has no setting 'topik'; pubsub: has .*topic"),
        ("ack_deadline_s=5", "ack_deadline_s=5 must be an integer from 10 to 600"),
        ("retry_s=-1", "retry_s=-1.0 must not be negative"),
        ("request_timeout_s=0", "request_timeout_s=0.0 must be positive"),
        ("credentials_file=x", "an emulator takes no credentials"),
    ):
        with pytest.raises(ConfigError, match=reason):
            open_queue(url("q", parameters))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(ConfigError, match=r"no credentials for Pub/Sub at .*: run `gcloud auth"):
        open_queue("pubsub://p/q")
    with pytest.raises(ConfigError, match=r"missing.json' is not the key of a service account"):
        open_queue(f"pubsub://p/q?credentials_file={tmp_path / 'missing.json'}")
    queue = new_queue("topic=missing")
    with pytest.raises(UnknownTopicError, match="has no projects/p/topics/missing"):
        queue.send([NewRecord("queue", b"1")])
    queue.close()
    queue = new_queue()
    small = NewRecord("queue", b"small")
    with pytest.raises(RecordTooLargeError, match=r"has 1\d{7} bytes .*, and Pub/Sub takes 10000000"):
        queue.send([small, NewRecord("queue", bytes(10_000_000))])
    with pytest.raises(ConfigError, match="a key of 2000 bytes is too long"):
        queue.send([small, NewRecord("queue", b"", b"k" * 2_000)])
    with pytest.raises(ConfigError, match=r"needs 101 attributes, and Pub/Sub allows 100"):
        queue.send([small, NewRecord("queue", b"1", headers=tuple((f"h{number}", b"") for number in range(101)))])
    assert not queue.receive(1, 0.6), "nothing of a batch is sent that cannot be sent as a whole"
    queue.send([small])
    [delivery] = _take(queue, 1)
    with pytest.raises(ConfigError, match="at most 600 s"):
        queue.settle(delivery, Outcome.RETRY, delay_s=601)
    queue.settle(delivery, Outcome.DONE)
    with pytest.raises(StaleDeliveryError, match="was settled too late or twice"):
        queue.settle(delivery, Outcome.DONE)
    queue.close()


def test_an_unreachable_server_is_told_in_time() -> None:
    with TcpProxy(1) as proxy:
        proxy.cut()
        with pytest.raises(BrokerUnavailableError, match=rf"the Pub/Sub emulator at {proxy.address} cannot be reached"):
            open_queue(f"pubsub://p/q?emulator={proxy.address}&connect_timeout_s=1")


@contextmanager
def scripted(answers: Mapping[str, Callable[[Any, grpc.ServicerContext], Any]]) -> Iterator[str]:
    """The address of a server that answers these requests by these functions, for what the fake cannot do."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            name = details.method.rpartition("/")[2]
            if name not in answers:
                return None
            request: Any = getattr(types, f"{name}Request")
            return grpc.unary_unary_rpc_method_handler(
                answers[name], request.deserialize, lambda answer: type(answer).serialize(answer)
            )

    server = grpc.server(ThreadPoolExecutor(2), [Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_a_server_of_another_kind_is_told_apart() -> None:
    with (
        scripted({}) as address,
        pytest.raises(BrokerUnavailableError, match="is not a Pub/Sub server") as refused,
    ):
        open_queue(f"pubsub://p/q?emulator={address}")
    assert not refused.value.retriable


def test_wrong_credentials_and_missing_permissions_are_told(caplog: pytest.LogCaptureFixture) -> None:
    code = grpc.StatusCode.UNAUTHENTICATED
    with (
        scripted({"GetSubscription": lambda _, context: context.abort(code, "invalid token")}) as address,
        pytest.raises(BrokerUnavailableError, match="refused the credentials: invalid token"),
    ):
        open_queue(f"pubsub://p/q?emulator={address}")

    def deny(_: Any, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "you may not")

    with scripted({"GetSubscription": deny, "Acknowledge": deny}) as address:
        queue = open_queue(f"pubsub://p/q?emulator={address}")
        assert isinstance(queue, PubsubQueue)
        assert queue.visibility_timeout_s == 10, "the shortest that a subscription can have"
        assert "without the permission pubsub.subscriptions.get" in caplog.text
        with pytest.raises(NotAllowedError, match="denied access to projects/p/subscriptions/q: you may not"):
            queue.settle(_delivery("a"), Outcome.DONE)
        with pytest.raises(ConfigError, match=r"does not say where to send: add .topic=TOPIC"):
            queue.send([NewRecord("queue", b"1")])
        queue.close()


def test_exactly_once_subscriptions_say_which_acknowledgements_failed() -> None:
    asked: list[list[str]] = []

    def acknowledge(request: types.AcknowledgeRequest, context: grpc.ServicerContext) -> Any:
        asked.append(list(request.ack_ids))
        if len(asked) == 1:
            info = error_details_pb2.ErrorInfo(
                reason="MIXED",
                metadata={"late": "PERMANENT_FAILURE_INVALID_ACK_ID", "busy": "TRANSIENT_FAILURE_OTHER"},
            )
            detail = any_pb2.Any()
            detail.Pack(info)
            status = status_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], details=[detail])
            context.abort_with_status(rpc_status.to_status(status))
        return types.GetSubscriptionRequest()  # empty, as google.protobuf.Empty is

    subscription = types.Subscription(name="projects/p/subscriptions/q", ack_deadline_seconds=30)
    with scripted({"GetSubscription": lambda *_: subscription, "Acknowledge": acknowledge}) as address:
        queue = open_queue(f"pubsub://p/q?emulator={address}")
        assert isinstance(queue, PubsubQueue)
        deliveries = {name: _delivery(name) for name in ("fine", "late", "busy")}
        late = queue.settle_all(list(deliveries.values()), Outcome.DONE)
        assert list(late) == [deliveries["late"]]
        assert asked == [["fine", "late", "busy"], ["busy"]], "only what may succeed is tried again"
        queue.close()


def _delivery(ack_id: str) -> PubsubDelivery:
    message = types.PubsubMessage.pb()(message_id=ack_id)
    record = ps.Record("q", 0, 0, None, b"")
    return PubsubDelivery(record, 1, ack_id, message, time.monotonic() + 30)


@pytest.mark.usefixtures("pubsub")
def test_an_app_handles_every_record_though_handlers_fail_and_its_process_is_killed(tmp_path: Path) -> None:
    name = new_queue(ack_deadline_seconds=5).name
    check_every_record_is_handled(url(name), tmp_path, visibility_s=5.0)


def _take(queue: PubsubQueue, count: int) -> list[PubsubDelivery]:
    received: list[PubsubDelivery] = []
    while len(received) < count:
        deliveries = queue.receive(count - len(received), WAIT_S)
        assert deliveries, f"{len(received)} of {count} records came, and then none"
        received += deliveries
    return received


def _receive(queue: PubsubQueue, count: int) -> list[PubsubDelivery]:
    """So many deliveries, settled as done."""
    received: list[PubsubDelivery] = []
    while len(received) < count:
        deliveries = queue.receive(count - len(received), WAIT_S)
        assert deliveries, f"{len(received)} of {count} records came, and then none"
        assert not queue.settle_all(deliveries, Outcome.DONE)
        received += deliveries
    return received
