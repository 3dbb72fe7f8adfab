"""What all conformance suites share: opening the backend, requiring features, and killing child processes.

A suite is a class of test cases for one kind of backend, a `unittest.TestCase`, so that pytest and unittest both run
it and neither is needed to import it. A kind `thing` has a module `conformance/thing.py` with

    class ThingCases(Suite[Thing]):
        def test_what_is_put_can_be_got(self) -> None:
            thing = self.open()                           # closed when the case ends
            ...
        @needs(Feature.DURABLE)                           # else the case is skipped, with the feature's name
        def test_what_was_acknowledged_survives_a_kill(self) -> None:
            with self.child(put_many, "x") as child:      # put_many(thing, parent, "x") in another process,
                        said = [child.receive() for _ in range(20)]  # which reports acknowledgements with `parent.send`
                        said += child.kill()                      # SIGKILL; returns what was not received yet
            thing = self.open()                           # the same storage again
            ...

    def thing(factory: Factory[Thing], features: Features | None = None) -> type[ThingCases]:
        return collect(ThingCases, factory, features)

and the author of a backend writes `TestMine = thing(open_mine)`.

**The factory** opens the backend; each call opens the same storage, as a second process would. If it has a parameter,
it gets a folder: a new one for each case, the same one for all calls within a case and for its children. Cases must
tolerate what other cases left in a shared storage: they use names from `self.fresh_name()`. For the cases that kill a
child process the factory must be importable (see `child`).

**Random choices** come from `self.rng`. Its seed is logged as a warning, which pytest shows when the case fails; run
again with the environment variable PENSTOCK_SEED set to it.

**Messages.** The asserts in here are in an installed package, which pytest does not rewrite: give each a message that
says which promise is broken and what was seen instead.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import random
import shutil
import tempfile
import threading
import unittest
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from penstock.abc import Feature, Features
from penstock.testing.conformance.child import Child, Work

logger = logging.getLogger(__name__)

SEED_VARIABLE = "PENSTOCK_SEED"


class Backend(Protocol):
    @property
    def features(self) -> Features: ...

    def close(self) -> None: ...


B = TypeVar("B", bound=Backend)
R = TypeVar("R")
E = TypeVar("E", bound=Exception)
Case = TypeVar("Case", bound=Callable[..., None])

Factory = Callable[..., B]
"""Opens a backend; takes nothing, or a folder. See the module's docstring."""


class RaisedError(Generic[E]):
    error: E


@dataclass(frozen=True, slots=True)
class Opener(Generic[B]):
    """The factory, with the folder of the case if it takes one. It can be pickled if both can."""

    factory: Factory[B]
    folder: Path | None

    def __call__(self) -> B:
        return self.factory() if self.folder is None else self.factory(self.folder)


class Suite(unittest.TestCase, Generic[B]):
    """The base of all suites. Subclasses add cases; `collect` adds the factory."""

    __test__: ClassVar[bool] = False
    """Only classes made by `collect` are collected by test runners."""
    factory: ClassVar[Any] = None
    declared: ClassVar[Features | None] = None
    """The given features, or else those that the backend declares, once it was opened."""

    opener: Opener[B]

    def setUp(self) -> None:
        assert self.factory is not None, "these cases need a backend: use the functions of penstock.testing.conformance"
        folder = None
        if takes_a_folder(self.factory):
            folder = Path(tempfile.mkdtemp(prefix="penstock-conformance-"))
            self.addCleanup(shutil.rmtree, folder)
        self.opener = Opener(self.factory, folder)

    @property
    def features(self) -> Features:
        """The backend's features. Opens it if no case has done so yet."""
        if self.declared is None:
            backend = self.opener()
            type(self).declared = backend.features
            backend.close()
        assert self.declared is not None
        return self.declared

    def open(self) -> B:
        """Open the backend (again). It is closed when the case ends, so a second `close` must be harmless."""
        backend = self.opener()
        self.addCleanup(backend.close)
        if self.declared is None:
            type(self).declared = backend.features
        return backend

    def child(self, work: Work, *arguments: Any) -> Child:
        """Another process that opens the backend and runs `work(backend, parent, *arguments)`, a module's function."""
        return Child(self.opener, work, *arguments)

    def run_together(self, children: Sequence[Child], timeout_s: float = 120.0) -> list[Any]:
        """Start children that say that they are ready and wait, all at once. Returns what they said until their end."""
        said: list[Any] = []
        with ExitStack() as stack:
            for child in children:
                stack.enter_context(child)
            for child in children:
                child.receive()
            for child in children:
                child.send("go")
            for child in children:
                said += child.wait_until_done(timeout_s)
        return said

    @functools.cached_property
    def rng(self) -> random.Random:
        given = os.environ.get(SEED_VARIABLE)
        seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
        logger.warning("%s=%d", SEED_VARIABLE, seed)
        return random.Random(seed)

    def fresh_name(self, kind: str = "topic") -> str:
        """A name that was never used in this storage."""
        return f"{kind}-{uuid.uuid4().hex[:12]}"

    def in_background(self, function: Callable[..., R], *arguments: Any) -> Future[R]:
        """Call it in a thread. `result_of` waits for it."""
        future: Future[R] = Future()

        def call() -> None:
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=call, name=f"background of {self.id()}", daemon=True).start()
        return future

    def result_of(self, future: Future[R], why: str, timeout_s: float) -> R:
        """The result of a background call; `why` says which promise is broken when there is none."""
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.done():
                raise
            raise AssertionError(f"{why}: not within {timeout_s:g} s") from error

    @contextmanager
    def expect(self, error: type[E], why: str) -> Iterator[RaisedError[E]]:
        """The block must raise this; `why` says which promise is broken when it does not. Yields what was raised."""
        caught: RaisedError[E] = RaisedError()
        try:
            yield caught
        except error as raised:
            caught.error = raised
        else:
            raise AssertionError(f"{why}: {error.__name__} was to be raised, and nothing was")


def needs(*features: Feature) -> Callable[[Case], Case]:
    """The case applies to backends with these features; for others it is skipped, naming the missing one."""

    def missing(has: Features) -> str:
        lacking = [f"no {feature.value} ({feature.name})" for feature in features if feature not in has]
        return lacking[0] if lacking else ""

    return _unless(missing)


def lacks(feature: Feature) -> Callable[[Case], Case]:
    """The case applies to backends without this feature: they must refuse what needs it."""
    return _unless(lambda has: f"{feature.name}, and nothing to refuse" if feature in has else "")


def _unless(obstacle: Callable[[Features], str]) -> Callable[[Case], Case]:
    """Skip a case if there is an obstacle: what the backend has, or does not have."""

    def decorate(case: Case) -> Case:
        @functools.wraps(case)
        def checked(self: Suite[Any]) -> None:
            if found := obstacle(self.features):
                raise unittest.SkipTest(f"does not apply: the backend has {found}")
            case(self)

        return cast(Case, checked)

    return decorate


S = TypeVar("S", bound=Suite[Any])


def collect(cases: type[S], factory: Callable[..., Any], features: Features | None = None) -> type[S]:
    """The class of test cases for one backend. Assign it to a name that begins with Test in a test module."""
    if not callable(factory):
        raise TypeError(f"{factory!r} is not a factory: pass a function that opens the backend, not the backend")
    body = {"__test__": True, "factory": staticmethod(factory), "declared": features, "__doc__": cases.__doc__}
    return cast(type[S], type(cases.__name__, (cases,), body))


def takes_a_folder(factory: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(factory).parameters.values()
    return any(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)
