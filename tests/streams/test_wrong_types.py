"""What is no URL, no topic, no number: every entry point says so in an error of ours, and at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import penstock
from penstock import Topic
from penstock.errors import ConfigError, GroupError, HandlerError, InvalidTopicError, PenstockError, UrlError
from penstock.streams.memory import MemoryStream

ORDERS = Topic("orders", str)
BAD_NAMES = ["", "a b", ".", "..", "x" * 250, "ürders", "a/b"]
NO_TOPICS: list[Any] = [None, 5, b"orders", Topic, object()]


@pytest.fixture(params=["embedded log", "memory"])
def any_stream(request: pytest.FixtureRequest) -> penstock.Connection:
    """Both kinds of connection refuse the same."""
    if request.param == "embedded log":
        found: penstock.Connection = request.getfixturevalue("stream")
        return found
    return penstock.connect("memory:wrong-types")


@pytest.mark.parametrize("url", [None, 5, b"log:./data", object()])
@pytest.mark.parametrize("options", [{}, {"spool": "./spool"}])
def test_connect_wants_a_url(url: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UrlError, match="is not a URL: pass text"):
        penstock.connect(url, **options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"linger_ms": "a"}, "linger_ms='a' must be a number"),
        ({"connect_timeout_s": [1]}, r"connect_timeout_s=\[1\] must be a number"),
        ({"librdkafka": "a"}, "librdkafka='a' is not a mapping"),
        ({"client_id": 5}, "client_id=5 must be text"),
        ({"spool": 5}, "spool=5 must be the path of a folder"),
    ],
)
def test_connect_wants_options_of_the_right_kind(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        penstock.connect("kafka://127.0.0.1:1", **options)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_before_anything_is_sent(any_stream: penstock.Connection, name: str) -> None:
    with pytest.raises(InvalidTopicError, match="is not a topic name: use 1 to 249"):
        Topic(name)
    with pytest.raises(InvalidTopicError, match="is not a topic name"):
        any_stream.send(name, "a")
    with pytest.raises(InvalidTopicError, match="is not a topic name"):
        any_stream.read(name)
    with penstock.Producer(any_stream) as producer:
        with pytest.raises(InvalidTopicError, match="is not a topic name"):
            producer.send(name, "a")
        with pytest.raises(InvalidTopicError, match="is not a topic name"):
            producer.send_record(penstock.NewRecord(name, b"a"))


@pytest.mark.parametrize("topic", NO_TOPICS)
def test_what_is_no_topic_is_refused_everywhere(any_stream: penstock.Connection, topic: Any) -> None:
    uses: list[Callable[[], object]] = [
        lambda: Topic(topic),
        lambda: any_stream.send(topic, "a"),
        lambda: any_stream.read(topic),
        lambda: any_stream.open_topic(topic),
        lambda: any_stream.create_topic(topic),
        lambda: any_stream.delete_topic(topic),
        lambda: penstock.Consumer(any_stream, topic, group="group"),
    ]
    for use in uses:
        with pytest.raises((InvalidTopicError, HandlerError)):
            use()


def test_read_wants_a_name_and_says_how_values_are_decoded(any_stream: penstock.Connection) -> None:
    with pytest.raises(InvalidTopicError, match=r"pass 'orders'. Values are bytes: `topic.decode"):
        any_stream.read(ORDERS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": "5"},
        {"limit": -1},
        {"timeout_s": "5"},
        {"partitions": 5},
        {"partitions": "01"},
        {"start": {0: "x"}},
        {"start": 5},
    ],
)
def test_read_wants_numbers(any_stream: penstock.Connection, wrong: dict[str, Any]) -> None:
    any_stream.send("numbers", "a").result(30)
    with pytest.raises(ConfigError):
        any_stream.read("numbers", **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": "0"},
        {"partition": -5},
        {"partition": True},
        {"headers": 5},
        {"headers": "ab"},
        {"headers": ["abc"]},
        {"timestamp": "x"},
    ],
)
def test_send_wants_what_a_record_can_have(any_stream: penstock.Connection, wrong: dict[str, Any]) -> None:
    for topic in ("orders", ORDERS):
        with pytest.raises(ConfigError):
            any_stream.send(topic, "a", **wrong)


@pytest.mark.parametrize("streams", [None, 5, object()])
def test_producers_consumers_and_apps_want_a_stream(streams: Any) -> None:
    with pytest.raises(ConfigError, match="is not a stream: pass a URL"):
        penstock.Producer(streams)
    with pytest.raises(ConfigError, match="is not a stream: pass a URL"):
        penstock.Consumer(streams, "orders", group="group")
    if streams is not None:  # an app that handles queues alone needs no stream
        with pytest.raises(ConfigError, match="is not a stream: pass a URL"):
            penstock.App(streams, group="group")


@pytest.mark.parametrize(
    "options",
    [
        {"to": 5},
        {"to": "a b"},
        {"group": 5},
        {"version": 5},
        {"snapshot": 5, "restore": 5},
        {"on_assigned": 5},
        {"seed": "a"},
        {"checkpoints": 5},
    ],
    ids=str,
)
def test_a_handler_wants_options_of_the_right_kind(options: dict[str, Any]) -> None:
    streams = MemoryStream()
    streams.send("orders", "a")
    app = penstock.App(streams, group="group")

    def run() -> None:
        app.handle("orders", end="latest", **options)(lambda value: None)
        app.run()

    with pytest.raises((ConfigError, GroupError, HandlerError, InvalidTopicError)):
        run()


WRONG: Any = "a"


@pytest.mark.parametrize(
    "use",
    [
        lambda stream: stream.flush(WRONG),
        lambda stream: stream.create_topic("made", partitions=WRONG),
        lambda stream: stream.create_topic("made", config=WRONG),
        lambda stream: penstock.Producer(stream, buffer=cast("Any", ["a"])),
        lambda stream: penstock.Producer(stream, buffer=cast("Any", None)),
        lambda stream: penstock.Producer(stream).send_record(WRONG),
        lambda stream: penstock.Retry(3, first_delay_s=WRONG),
        lambda stream: penstock.CircuitBreaker(after=WRONG),
        lambda stream: penstock.App(stream, group="group", clock=WRONG),
        lambda stream: penstock.App(stream, group="group").stage(cast("Any", [WRONG]))(print),
    ],
)
def test_nothing_else_raises_an_error_that_is_not_ours(
    stream: penstock.Connection, use: Callable[[penstock.Connection], object]
) -> None:
    with pytest.raises(PenstockError):
        use(stream)
