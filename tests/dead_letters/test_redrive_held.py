"""One redrive of a place runs at a time, in whatever process; one that has died is in nobody's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from penstock.abc import DeadLetters
from penstock.dead_letters import open_dead_letters, redrive
from penstock.dead_letters import stream as stream_letters
from penstock.dead_letters.holding import DEAD_AFTER_S, Hold, NoHold, hold_of
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.errors import RedriveRunningError, StoreUnavailableError
from penstock.model import DeadLetterFilter, Record
from penstock.model.clock import SystemClock
from penstock.streams.memory import MemoryStream
from tests.clients.names import fresh
from tests.dead_letters.hasty_clock import HastyClock
from tests.dead_letters.holder import holder_process
from tests.dead_letters.letters import given_up
from tests.postgres import shared_postgres
from tests.servers import Penstock

CLOCK: Final = SystemClock()
Spec = Callable[[Path], str]


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life are given by the tests, not by the time."""
    monkeypatch.setattr(stream_letters, "SIGN_EVERY_S", 3_600.0)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Connection]:
    with (
        Penstock(tmp_path_factory.mktemp("held")) as broker,
        penstock.connect(f"kafka://{broker.bootstrap}") as connection,
    ):
        yield connection


def in_sqlite(folder: Path) -> str:
    return f"sqlite:{folder}/letters.db"


def in_a_file(folder: Path) -> str:
    return f"file:{folder}/letters.jsonl"


def on_the_stream(folder: Path) -> str:
    return f"{fresh()}.dlq"


def in_postgres(folder: Path) -> str:
    return shared_postgres().fresh_database()


STORAGES: Final = (in_sqlite, in_a_file, on_the_stream, in_postgres)


def record(number: int) -> Record:
    return Record("orders", 0, number, b"key", b"value", (), 1_000)


def put_letters(letters: DeadLetters, count: int = 3) -> None:
    letters.put([given_up(record(number)) for number in range(count)])


@pytest.fixture
def topic(stream: penstock.Connection) -> None:
    if "orders" not in stream.topics():
        stream.create_topic("orders", 1)


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("spec_of", STORAGES)
def test_who_begins_a_second_redrive_is_told_whose_the_first_is(
    stream: penstock.Connection, tmp_path: Path, spec_of: Spec
) -> None:
    spec = spec_of(tmp_path)
    ours, theirs = open_dead_letters(spec, stream), open_dead_letters(spec, stream)
    put_letters(ours)
    hold = hold_of(ours, "ann in the console", 0.0, CLOCK)
    try:
        with pytest.raises(RedriveRunningError, match=r"already being redriven by ann in the console, since \d{4}-"):
            hold_of(theirs, "ben", 0.0, CLOCK)
        hold.check()
        assert redrive(ours, stream, DeadLetterFilter(), limit=1, hold=hold).redriven == 1, "who holds it may"
        with pytest.raises(RedriveRunningError):
            hold_of(theirs, "ben", 0.0, CLOCK)
    finally:
        hold.release()
    hold.release()
    assert redrive(theirs, stream, DeadLetterFilter()).redriven == 2
    assert redrive(ours, stream, DeadLetterFilter()).redriven == 0, "a redrive lets go when it has ended"
    for letters in (ours, theirs):
        letters.close()


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("spec_of", STORAGES)
def test_a_redrive_that_was_killed_is_in_nobodys_way(
    stream: penstock.Connection, tmp_path: Path, spec_of: Spec
) -> None:
    spec = spec_of(tmp_path)
    letters = open_dead_letters(spec, stream)
    put_letters(letters)
    with holder_process(spec, stream.url) as process:
        with pytest.raises(RedriveRunningError, match="by the other process"):
            hold_of(letters, "ours", 0.0, CLOCK)
        process.kill()
        process.wait(30)
        if spec_of is in_postgres:
            _wait_until_free(letters)
        clock = HastyClock()
        assert redrive(letters, stream, DeadLetterFilter(), clock=clock).redriven == 3
        assert sum(clock.slept_s) <= DEAD_AFTER_S + 1
    letters.close()


def _wait_until_free(letters: DeadLetters) -> None:
    """The server has to see that the connection has ended."""
    until_s = CLOCK.monotonic_s() + 30
    while True:
        try:
            hold_of(letters, "ours", 0.0, CLOCK).release()
            return
        except RedriveRunningError:
            assert CLOCK.monotonic_s() < until_s
            CLOCK.sleep(0.02)


@pytest.mark.parametrize("spec_of", [in_sqlite, in_a_file])
def test_however_its_path_is_written_it_is_one_place_and_nothing_is_left_beside_it(
    tmp_path: Path, spec_of: Spec
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    one, other = open_dead_letters(spec_of(tmp_path / "there")), open_dead_letters(spec_of(tmp_path / "link"))
    hold = hold_of(one, "ann", 0.0, CLOCK)
    with pytest.raises(RedriveRunningError):
        hold_of(other, "ben", 0.0, CLOCK)
    hold.release()
    assert [path.name for path in (tmp_path / "there").iterdir() if path.suffix == ".redrive"] == []
    for letters in (one, other):
        letters.close()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    letters = open_dead_letters(in_sqlite(tmp_path))
    (tmp_path / "letters.db.redrive").mkdir()
    with pytest.raises(StoreUnavailableError, match="redrive lock"):
        hold_of(letters, "ann", 0.0, CLOCK)
    letters.close()


@pytest.fixture
def streams() -> MemoryStream:
    memory = MemoryStream()
    memory.create_topic("orders", 1)
    return memory


def in_topic(streams: MemoryStream) -> StreamDeadLetters:
    return StreamDeadLetters(streams, "orders.dlq")


def test_a_topic_that_is_not_there_is_not_made_by_holding_it(streams: MemoryStream) -> None:
    hold = hold_of(in_topic(streams), "ann", 0.0, CLOCK)
    hold.check()
    hold.release()
    assert streams.topics() == ["orders"]
    assert redrive(in_topic(streams), streams, DeadLetterFilter()).redriven == 0


class Beating(HastyClock):
    """Whoever sleeps on it sees a sign of the other one."""

    def __init__(self, letters: StreamDeadLetters, hold: Any) -> None:
        super().__init__()
        self._letters = letters
        self._hold = hold

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        sign = self._hold._sign
        self._letters._put_sign(type(sign)(sign.token, sign.holder, sign.since_ms, sign.number + 1))


def test_who_watches_a_topic_is_refused_as_soon_as_the_other_gives_a_sign(streams: MemoryStream) -> None:
    ours, theirs = in_topic(streams), in_topic(streams)
    put_letters(ours)
    hold = hold_of(ours, "ann", 0.0, CLOCK)
    clock = Beating(ours, hold)
    with pytest.raises(RedriveRunningError, match="by ann"):
        hold_of(theirs, "ben", 60.0, clock)
    assert len(clock.slept_s) == 1
    hold.release()


def test_who_holds_a_topic_gives_signs_by_itself_and_a_last_one(
    streams: MemoryStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_letters, "SIGN_EVERY_S", 0.001)
    letters = in_topic(streams)
    put_letters(letters)
    hold = hold_of(letters, "ann", 0.0, CLOCK)
    until_s = CLOCK.monotonic_s() + 30
    while (sign := stream_letters.sign_of(_last_record(streams))) is None or sign.number < 3:
        assert CLOCK.monotonic_s() < until_s
    hold.release()
    last = stream_letters.sign_of(_last_record(streams))
    assert last is not None
    assert last.is_last
    assert letters.count(DeadLetterFilter()) == 3


def _last_record(streams: MemoryStream) -> Record:
    stream = streams.open_topic("orders.dlq")
    return stream.read(0, stream.span(0)[1] - 1, 1, 0)[0]


def test_who_wakes_up_after_another_took_over_stops(streams: MemoryStream) -> None:
    ours, theirs = in_topic(streams), in_topic(streams)
    put_letters(ours)
    asleep = hold_of(ours, "ann", 0.0, CLOCK)
    taken_over = hold_of(theirs, "ben", 60.0, HastyClock())
    with pytest.raises(RedriveRunningError, match="by ben"):
        redrive(ours, streams, DeadLetterFilter(), limit=1, hold=_Late(ours, asleep))
    asleep.release()
    taken_over.check()
    with pytest.raises(RedriveRunningError, match="by ben"):
        hold_of(ours, "ann", 0.0, CLOCK)
    taken_over.release()
    assert redrive(ours, streams, DeadLetterFilter()).redriven == 3


class _Late:
    """A hold whose owner looks into the topic before it checks, as it does from the second page on."""

    def __init__(self, letters: StreamDeadLetters, hold: Hold) -> None:
        self._letters = letters
        self._hold = hold

    def check(self) -> None:
        self._letters.count(DeadLetterFilter())
        self._hold.check()

    def release(self) -> None:
        self._hold.release()


def test_of_two_who_take_over_at_once_the_log_lets_one(streams: MemoryStream) -> None:
    ours, theirs = in_topic(streams), in_topic(streams)
    put_letters(ours)
    dead = hold_of(ours, "dead", 0.0, CLOCK)
    seen = ours._silent_sign(60.0, HastyClock())
    first = hold_of(theirs, "first", 60.0, HastyClock())
    ours._silent_sign = lambda wait_s, clock: seen  # type: ignore[method-assign]  # it looked before the other wrote
    with pytest.raises(RedriveRunningError, match="by first"):
        ours.hold("second", 0.0, CLOCK)
    first.check()
    for hold in (dead, first):
        hold.release()


def test_letters_that_cannot_be_held_are_redriven_as_they_are(streams: MemoryStream, tmp_path: Path) -> None:
    kept = open_dead_letters(in_sqlite(tmp_path))
    put_letters(kept)

    class Own:
        """A storage of a user's own."""

        def __init__(self) -> None:
            for name in ("features", "put", "browse", "count", "take", "settle", "discard", "close"):
                setattr(self, name, getattr(kept, name))

    own: Any = Own()
    assert isinstance(hold_of(own, "ann", 0.0, CLOCK), NoHold)
    assert redrive(own, streams, DeadLetterFilter()).redriven == 3
    kept.close()
