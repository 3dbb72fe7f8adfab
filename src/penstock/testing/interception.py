"""Wrappers that pass each call through an interceptor, as the basis of faults and crashes.

`InterceptedTopicStream(stream, between)` behaves as the stream, with `between.call("read", stream.read, ...)` in place
of each `stream.read(...)`. Operations have the names of the methods in `penstock.abc`, and their own name where
something happens inside of a call or after it: see each wrapper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from penstock.abc import (
    CheckpointStore,
    DeadLetters,
    Features,
    Feed,
    Feeding,
    GroupFeed,
    Grouping,
    GroupListener,
    PipelinedTransaction,
    StoreTransaction,
    Stream,
    TopicStream,
    TransactionalStore,
)
from penstock.model import Change, CheckpointKey, Lease, NewRecord, Receipt

P = ParamSpec("P")
R = TypeVar("R")


class Interceptor(Protocol):
    """Sits between a caller and a backend. May be called from any thread."""

    def call(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or do something else, also before or after it."""


def nothing() -> None:
    """The function of an operation that only reports an event."""


def _intercepted(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The method of the wrapped part, called through the interceptor as the operation of its name."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        function: Callable[P, R] = getattr(self._inner, method.__name__)
        between: Interceptor = self._between
        return between.call(method.__name__, function, *args, **kwargs)

    return call


def _passed_on(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The method of the wrapped part, without the interceptor."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        function: Callable[P, R] = getattr(self._inner, method.__name__)
        return function(*args, **kwargs)

    return call


class InterceptedLetters:
    """`abc.DeadLetters`. Its operations are the names of the methods."""

    OPERATIONS: ClassVar = frozenset(["put", "browse", "count", "take", "settle", "discard"])

    def __init__(self, letters: DeadLetters, between: Interceptor) -> None:
        self._inner = letters
        self._between = between

    @property
    def features(self) -> Features:
        return self._inner.features

    put = _intercepted(DeadLetters.put)
    browse = _intercepted(DeadLetters.browse)
    count = _intercepted(DeadLetters.count)
    take = _intercepted(DeadLetters.take)
    settle = _intercepted(DeadLetters.settle)
    discard = _intercepted(DeadLetters.discard)
    close = _passed_on(DeadLetters.close)


class InterceptedStore:
    """`abc.CheckpointStore`. Operations: the names of the methods; with transactions, also "begin", "commit" and
    "transaction.save", for the save inside of one. `transaction` exists if the store has it."""

    OPERATIONS: ClassVar = (
        frozenset({"claim", "renew", "release", "leases", "forget_lease", "load", "save", "checkpoints", "groups"})
        | frozenset({"forget", "state", "handled", "history"})
        | frozenset({"begin", "transaction.save", "commit"})
    )

    def __init__(self, store: CheckpointStore, between: Interceptor) -> None:
        self._inner = store
        self._between = between
        if isinstance(store, TransactionalStore):
            self.transaction = self._transaction

    @property
    def features(self) -> Features:
        return self._inner.features

    claim = _intercepted(CheckpointStore.claim)
    renew = _intercepted(CheckpointStore.renew)
    release = _intercepted(CheckpointStore.release)
    leases = _intercepted(CheckpointStore.leases)
    forget_lease = _intercepted(CheckpointStore.forget_lease)
    load = _intercepted(CheckpointStore.load)
    save = _intercepted(CheckpointStore.save)
    checkpoints = _intercepted(CheckpointStore.checkpoints)
    groups = _intercepted(CheckpointStore.groups)
    forget = _intercepted(CheckpointStore.forget)
    state = _intercepted(CheckpointStore.state)
    handled = _intercepted(CheckpointStore.handled)
    history = _intercepted(CheckpointStore.history)
    close = _passed_on(CheckpointStore.close)

    @contextmanager
    def _transaction(self) -> Iterator[StoreTransaction]:
        assert isinstance(self._inner, TransactionalStore)
        with ExitStack() as stack:  # rolls back, unless the commit was reached
            transaction = self._between.call("begin", stack.enter_context, self._inner.transaction())
            yield _InterceptedTransaction(transaction, self._between)
            self._between.call("commit", stack.close)


class _InterceptedTransaction:
    def __init__(self, transaction: StoreTransaction, between: Interceptor) -> None:
        self._inner = transaction
        self._between = between
        if isinstance(transaction, PipelinedTransaction):
            self.send_ahead = transaction.send_ahead
            self.catch_up = transaction.catch_up

    @property
    def connection(self) -> Any:
        return self._inner.connection

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        self._between.call("transaction.save", self._inner.save, lease, key, change)

    def savepoint(self) -> AbstractContextManager[None]:
        return self._inner.savepoint()


class InterceptedTopicStream:
    """`abc.TopicStream`. Operations: the names of the methods; "poll" and "commit" of its feeds; and "acknowledge"
    when a receipt is settled, before all its other callbacks. `feed` and `group_feed` exist if the stream has them."""

    OPERATIONS: ClassVar = (
        frozenset({"partitions", "locate", "span", "read", "append", "acknowledge", "close"})
        | frozenset({"poll", "commit"})
        | frozenset({"topics", "create_topic"})
    )

    def __init__(self, stream: TopicStream, between: Interceptor) -> None:
        self._inner = stream
        self._between = between
        if isinstance(stream, Feeding):
            self.feed = self._feed
        if isinstance(stream, Grouping):
            self.group_feed = self._group_feed

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def features(self) -> Features:
        return self._inner.features

    partitions = _intercepted(TopicStream.partitions)
    locate = _intercepted(TopicStream.locate)
    span = _intercepted(TopicStream.span)
    read = _intercepted(TopicStream.read)
    close = _intercepted(TopicStream.close)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = self._between.call("append", self._append, records)
        for receipt in receipts:
            receipt.add_done_callback(lambda _: self._between.call("acknowledge", nothing))
        return receipts

    def _append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        return self._inner.append(records)

    def _feed(self) -> Feed:
        assert isinstance(self._inner, Feeding)
        return InterceptedFeed(self._inner.feed(), self._between)

    def _group_feed(
        self, group: str, listener: GroupListener, *, member: str, assignor: str, session_timeout_s: float
    ) -> GroupFeed:
        assert isinstance(self._inner, Grouping)
        feed = self._inner.group_feed(
            group, listener, member=member, assignor=assignor, session_timeout_s=session_timeout_s
        )
        return InterceptedGroupFeed(feed, self._between)


class InterceptedFeed:
    """`abc.Feed`."""

    def __init__(self, feed: Feed, between: Interceptor) -> None:
        self._inner = feed
        self._between = between

    add = _passed_on(Feed.add)
    remove = _passed_on(Feed.remove)
    pause = _passed_on(Feed.pause)
    resume = _passed_on(Feed.resume)
    poll = _intercepted(Feed.poll)
    wake = _passed_on(Feed.wake)
    close = _passed_on(Feed.close)


class InterceptedGroupFeed(InterceptedFeed):
    """`abc.GroupFeed`, which the feed given must be."""

    seek = _passed_on(GroupFeed.seek)
    commit = _intercepted(GroupFeed.commit)


class InterceptedStream:
    """`abc.Stream` whose topics all share one interceptor."""

    def __init__(self, stream: Stream, between: Interceptor) -> None:
        self._inner = stream
        self._between = between

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def features(self) -> Features:
        return self._inner.features

    def open_topic(self, topic: str) -> InterceptedTopicStream:
        return InterceptedTopicStream(self._inner.open_topic(topic), self._between)

    topics = _intercepted(Stream.topics)
    create_topic = _intercepted(Stream.create_topic)
    close = _passed_on(Stream.close)
