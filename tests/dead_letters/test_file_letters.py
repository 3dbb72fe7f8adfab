"""Dead letters in a file: lines for people, and what is done about lines that are not whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from penstock.dead_letters.file import FileDeadLetters
from penstock.errors import ConfigError, ConnectionClosedError, StoreUnavailableError
from penstock.model import DeadLetter, DeadLetterFilter, Record
from tests.dead_letters.letters import given_up

EVERYTHING = DeadLetterFilter(states=frozenset())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "letters.jsonl"


def letter(offset: int) -> DeadLetter:
    return given_up(Record("orders", 0, offset, b"key", b"value \xff" if offset % 2 else b"value"))


def test_a_line_can_be_read_by_people(path: Path) -> None:
    letters = FileDeadLetters(path)
    letters.put([letter(0), letter(1)])
    letters.discard([letter(0).id])
    letters.close()
    first, second, third = map(json.loads, path.read_text("utf-8").splitlines())
    assert (first["event"], first["id"], first["letter"]["value"]) == ("put", letter(0).id, "value")
    assert second["letter"]["value_base64"] == "dmFsdWUg/w=="
    assert third == {"event": "discarded", "id": letter(0).id}


@pytest.mark.parametrize("name", ["letters", "letters/"])
def test_a_folder_holds_a_file(tmp_path: Path, name: str) -> None:
    letters = FileDeadLetters(f"{tmp_path}/{name}")
    assert letters.path == tmp_path / "letters" / "letters.jsonl"
    letters.close()


def test_a_line_that_was_not_finished_is_cut_off(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    letters = FileDeadLetters(path)
    letters.put([letter(0), letter(1)])
    whole = path.read_bytes()
    other = FileDeadLetters(path)
    other.count(EVERYTHING)
    for length in (1, 50, len(whole) // 2):
        path.write_bytes(whole + whole[:length])
        assert other.count(EVERYTHING) == 2, "who only looks passes over it"
        assert path.stat().st_size == len(whole) + length, "and changes nothing"
    letters.put([letter(2)])
    assert "truncating the last line" in caplog.text
    assert list(other.browse(EVERYTHING)) == [letter(0), letter(1), letter(2)]
    assert path.read_bytes().startswith(whole)
    letters.close()
    other.close()


@pytest.mark.parametrize("line", [b"", b"{}", b"nonsense", b'{"event":"put","id":"x"}', b"\xff\xfe", b"\x00" * 100])
def test_a_damaged_line_is_told_and_harms_no_other(path: Path, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    letters = FileDeadLetters(path)
    letters.put([letter(0)])
    with path.open("ab") as file:
        file.write(line + b"\n")
    letters.put([letter(1)])
    assert list(letters.browse(EVERYTHING)) == [letter(0), letter(1)]
    assert "is not a dead letter" in caplog.text
    letters.close()


def test_a_file_that_is_moved_away_is_begun_again(path: Path) -> None:
    letters, other = FileDeadLetters(path), FileDeadLetters(path)
    letters.put([letter(0)])
    path.rename(path.with_suffix(".old"))
    letters.put([letter(1)])
    assert list(other.browse(EVERYTHING)) == list(letters.browse(EVERYTHING)) == [letter(1)]
    path.write_bytes(b"")
    assert letters.count(EVERYTHING) == 0, "somebody has emptied it"
    letters.close()
    other.close()


def test_a_full_disk_is_told_and_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = FileDeadLetters(path)
    letters.put([letter(0)])
    real = os.write

    def write_a_little(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, bytes(data)[: len(data) // 2])

    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_a_little)
        with pytest.raises(StoreUnavailableError, match="No space left"):
            letters.put([letter(1)])
    assert path.read_bytes() == before
    letters.put([letter(2)])
    assert list(letters.browse(EVERYTHING)) == [letter(0), letter(2)]
    letters.close()


def test_a_write_in_several_steps_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    letters = FileDeadLetters(path)
    letters.put([letter(0), letter(1)])
    assert list(letters.browse(EVERYTHING)) == [letter(0), letter(1)]
    letters.close()


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    with pytest.raises(ConfigError, match="cannot be stored in"):
        FileDeadLetters(tmp_path / "file" / "letters.jsonl")
    letters = FileDeadLetters(tmp_path / "x.jsonl")
    letters.close()
    with pytest.raises(ConnectionClosedError, match="are closed"):
        letters.count(EVERYTHING)
