"""Cases of which `make test` tries a seeded sample, and `make soak` all.

A parametrised test carries `@pytest.mark.sampled(count)`, or `@pytest.mark.sampled(count, each="store")` for so many
cases of every value of the parameter `store`. Tests of which each is long, and about the same thing, carry
`@pytest.mark.sampled(count, among="their common name")`: so many of them all are run. `@pytest.mark.soak` leaves a test
to the soak altogether: for a second opinion about what others test already. A test that tries its cases in a loop asks
`sample` for them, or `times` for how often to repeat something; one of hypothesis asks `examples`. The run ends with
how many of the cases were tried, and with the seed: PENSTOCK_SEED set to it tries the same ones.

A `make test` of every room also leaves out some tests of the rooms in `SHARES`, which start JVMs, browsers, servers and
processes that are killed: all of them would take an hour. Another seed chooses others, so that a few runs try them all.
The cases in `ALWAYS` are left out by no run: each system has its server killed, and loses nothing.
`make test TEST=spark` runs all tests of one room.
"""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import pytest

from tests.could_not_run import without_group
from tests.seeds import VARIABLE, seed_of

SOAK: Final = "PENSTOCK_SOAK"
MARKER: Final = "sampled"
SOAK_MARKER: Final = "soak"
AMONG: Final = "among"
KEY: Final = "sampled"

EVERY_ROOM: Final = "PENSTOCK_EVERY_ROOM"
"""The environment variable that says that a run is of every room."""
SHARES: Final = {
    "tests/broker/": 1 / 3,
    "tests/checkpoints/test_dynamodb.py": 1 / 6,
    "tests/checkpoints/test_kafka": 1 / 6,
    "tests/checkpoints/test_s3.py": 1 / 6,
    "tests/cli/": 1 / 4,
    "tests/clients/": 1 / 3,
    "tests/cluster/": 1 / 3,
    "tests/console/web/": 1 / 6,
    "tests/crash/": 1 / 3,
    "tests/docs/": 1 / 6,
    "tests/lakes/": 1 / 2,
    "tests/log/test_arrow": 1 / 3,
    "tests/spark/": 1 / 10,
    "tests/streams/": 1 / 6,
    "tests/supervising/": 1 / 4,
    "tests/systems/": 1 / 10,
    "tests/tables/": 1 / 3,
    "tests/testing/": 1 / 2,
}
"""Which share of the tests of a module, or of a class in it, a run of every room tries."""
ALWAYS: Final = (
    "test_nothing_acknowledged_is_lost_when_the_server_is_killed",
    "test_no_record_is_lost_when_the_server_is_killed",
)
"""Cases of the conformance suites that every run tries on every system."""

Case = TypeVar("Case")

_tried: dict[str, tuple[int, int]] = {}
"""By test: how many of its cases this process tries, and how many there are."""


def is_soak() -> bool:
    """Whether this run tries everything (`make soak`)."""
    return os.environ.get(SOAK, "") not in ("", "0")


def is_every_room() -> bool:
    """Whether this run is of every room, and so leaves out some tests of those that take long."""
    return os.environ.get(EVERY_ROOM, "") not in ("", "0") and not is_soak()


def sample(cases: Iterable[Case], count: int) -> list[Case]:
    """So many of the cases of the running test, in their order; in a soak, all of them."""
    everything = list(cases)
    chosen = _chosen(everything, count, seed_of())
    _note(_running_test(), len(chosen), len(everything))
    return chosen


def times(count: int, soak: int) -> int:
    """How often the running test repeats something: `count` times, and `soak` times in a soak."""
    chosen = soak if is_soak() else count
    _note(_running_test(), chosen, soak)
    return chosen


def examples(count: int, soak: int) -> int:
    """How many examples a test of hypothesis tries, or steps a random walk takes: `count`, and `soak` in a soak."""
    return soak if is_soak() else count


def _chosen(cases: list[Case], count: int, seed: int) -> list[Case]:
    if is_soak() or len(cases) <= count:
        return cases
    return [cases[index] for index in sorted(random.Random(seed).sample(range(len(cases)), count))]


def _running_test() -> str:
    """pytest names it in the environment, with the phase behind it: `tests/x.py::test_y (call)`."""
    return without_group(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])


def _note(test: str, tried: int, of: int) -> None:
    before_tried, before_of = _tried.get(test, (0, 0))
    _tried[test] = (before_tried + tried, before_of + of)


class Sampling:
    """A pytest plugin that leaves out the parametrised cases outside the sample, and says so at the end."""

    def __init__(self) -> None:
        self._tried: dict[str, tuple[int, int]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        groups: defaultdict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
        left_out: set[pytest.Item] = set()
        for item in items:
            marker = item.get_closest_marker(MARKER)
            if item.get_closest_marker(SOAK_MARKER) is not None:
                _note(unparametrised_name(item), int(is_soak()), 1)
                if not is_soak():
                    left_out.add(item)
            elif marker is not None:
                groups[marker.kwargs.get(AMONG) or unparametrised_name(item), stratum_of(item, marker)].append(item)
            elif share_of(item) < 1 and item.name.partition("[")[0] not in ALWAYS:
                groups[unparametrised_name(item).rpartition("::")[0], ""].append(item)
        for (test, _), cases in groups.items():
            marker = cases[0].get_closest_marker(MARKER)
            count = math.ceil(len(cases) * share_of(cases[0])) if marker is None else marker.args[0]
            chosen = _chosen(cases, count, int(os.environ[VARIABLE]))
            left_out.update(set(cases) - set(chosen))
            _note(test, len(chosen), len(cases))
        if left_out:
            config.hook.pytest_deselected(items=list(left_out))
            items[:] = [item for item in items if item not in left_out]

    def for_the_controller(self) -> dict[str, object]:
        return {KEY: dict(_tried)}

    def merge(self, worker_output: dict[str, object]) -> None:
        """Take over what another process tried. Workers collect the same tests and agree on the marked ones."""
        tried = worker_output.get(KEY, {})
        assert isinstance(tried, dict)
        self._tried.update(tried)

    def write(self, reporter: pytest.TerminalReporter) -> None:
        everything = {**_tried, **self._tried}
        tried, of = (sum(counts[index] for counts in everything.values()) for index in (0, 1))
        if tried < of:
            reporter.write_line(
                f"sampled: {tried:,} of {of:,} cases ({VARIABLE}={os.environ[VARIABLE]} tries the same, "
                "`make soak` all)"
            )
        else:
            reporter.write_line(f"sampled: nothing, every case was tried ({VARIABLE}={os.environ[VARIABLE]})")


def share_of(item: pytest.Item) -> float:
    """Which share of the tests beside this one, and of itself, this run tries."""
    shares = SHARES if is_every_room() else {}
    return next((share for path, share in shares.items() if item.nodeid.startswith(path)), 1.0)


def unparametrised_name(item: pytest.Item) -> str:
    """The id of the test without its parameters."""
    return without_group(item.nodeid).partition("[")[0]


def stratum_of(item: pytest.Item, marker: pytest.Mark) -> str:
    """The value of the parameter of which every value is sampled on its own."""
    each: str | Sequence[str] = marker.kwargs.get("each", ())
    if not each:
        return ""
    parameters = item.callspec.params  # type: ignore[attr-defined]
    return repr([str(parameters[name]) for name in ([each] if isinstance(each, str) else each)])
