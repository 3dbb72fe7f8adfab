"""Unit files of systemd, read back by systemd itself where it is installed."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.supervising.systemd import quoted, unit_file


def unit(folder: Path, *arguments: str) -> str:
    environment = {"PENSTOCK_URL": 'log:./a "b" 100%', "PATH": "/usr/bin:/bin", "SECRET": "no"}
    command = [sys.executable, "-m", "penstock.cli", "up", *arguments]
    return unit_file(command, ["billing"], 30.0, folder=folder, environment=environment)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    folder = tmp_path / "with a space 100%"
    folder.mkdir()
    file = tmp_path / "penstock-test.service"
    file.write_text(unit(folder, "it's $HOME.py", 'a "b"\\c.py'))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if file.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_unit_says_what_the_supervisor_needs(tmp_path: Path) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit(tmp_path, "app.py"))
    service = dict(parser["Service"])
    assert service["ExecStart"] == f'"{sys.executable}" "-m" "penstock.cli" "up" "app.py"'
    assert service["WorkingDirectory"] == str(tmp_path)
    assert (service["KillMode"], service["TimeoutStopSec"]) == ("mixed", "50")
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "1 2")
    assert "SECRET" not in unit(tmp_path, "app.py")


@pytest.mark.parametrize(
    ("word", "text"),
    [("plain", '"plain"'), ("50%", '"50%%"'), ("$HOME", '"$$HOME"'), ('a"b', '"a\\"b"'), ("a\\b", '"a\\\\b"')],
)
def test_words_are_quoted_as_systemd_reads_them(word: str, text: str) -> None:
    assert quoted(word) == text


def test_a_line_break_is_refused() -> None:
    with pytest.raises(ConfigError, match="line break"):
        quoted("a\nb")
