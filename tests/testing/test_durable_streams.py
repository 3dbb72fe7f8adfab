"""What the suite says about streams whose appenders are killed, in processes that really are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.streams.memory import MemoryStream
from penstock.testing import conformance
from tests.testing import file_streams
from tests.testing.file_streams import FileStreams
from tests.testing.running_cases import complaint_of

KILLED = "test_nothing_acknowledged_is_lost_when_the_appender_is_killed"
TWICE = "test_nothing_is_stored_twice_when_the_appender_is_killed"
AGAIN = "test_what_was_stored_is_there_when_the_stream_is_opened_again"

TestFileStreams = conformance.stream(FileStreams)


@pytest.mark.parametrize(
    ("factory", "case", "says"),
    [
        (file_streams.AcknowledgingFirst, KILLED, "acknowledged records are not where their receipts said"),
        (file_streams.WritingBackwards, KILLED, "acknowledged records are not where their receipts said"),
        (file_streams.WritingTwice, TWICE, "are stored repeatedly"),
        (file_streams.NeverWriting, AGAIN, "0 records instead of 20"),
    ],
)
def test_a_defect_that_a_kill_brings_to_light_is_caught(
    factory: Callable[[Path], MemoryStream], case: str, says: str
) -> None:
    assert says in str(complaint_of(conformance.stream(factory), case))


def test_a_factory_that_no_other_process_can_import_is_refused_with_a_hint() -> None:
    def inside(folder: Path) -> FileStreams:
        return FileStreams(folder)

    for factory in (inside, lambda folder: FileStreams(folder)):
        assert "make it a function of a module" in str(complaint_of(conformance.stream(factory), KILLED))


def open_badly(folder: Path) -> FileStreams:
    if (folder / "opened").exists():
        raise OSError("the disk is on fire")
    (folder / "opened").touch()
    return FileStreams(folder)


def test_what_goes_wrong_in_a_child_process_is_told_by_its_parent() -> None:
    cases = conformance.stream(open_badly, features=file_streams.FEATURES)
    assert "the disk is on fire" in str(complaint_of(cases, KILLED))
