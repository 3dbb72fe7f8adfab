"""The list of what could not run, at the end of a test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "test_kcat.py": """
        import pytest
        def test_one(): pytest.skip("kcat is not installed: apt-get failed")
        @pytest.mark.parametrize("mail", ["a@b"])
        @pytest.mark.xdist_group("shared")
        def test_two(mail): pytest.skip("kcat is not installed: apt-get failed")
        @pytest.fixture
        def server(): pytest.skip("java is not installed")
        def test_three(server): pass
    """,
    "test_node.py": """
        import pytest
        def test_four(): pytest.skip("kcat is not installed: apt-get failed")
        @pytest.mark.xdist_group("shared")
        def test_five(): pytest.skip("node is not installed")
        @pytest.mark.xdist_group("shared")
        @pytest.mark.parametrize("mail", ["a@b"])
        def test_six(mail): pytest.skip("npm is not installed")
    """,
    "test_whole_module.py": """
        import pytest
        pytest.skip("a whole module is left out", allow_module_level=True)
    """,
    "test_good.py": """
        import pytest
        def test_passes(): pass
        @pytest.mark.xfail(reason="known")
        def test_expected_failure(): assert False
    """,
}
LISTED = """could not run:
  a whole module is left out
    test_whole_module.py
  java is not installed
    test_kcat.py::test_three
  kcat is not installed: apt-get failed
    test_kcat.py: 2 tests
    test_node.py::test_four
  node is not installed
    test_node.py::test_five
  npm is not installed
    test_node.py::test_six[a@b]
"""
IN_ONE_PROCESS = ("-p", "no:xdist", "-W", "ignore::pytest.PytestUnknownMarkWarning")
IN_WORKERS = ("-n", "2", "--dist", "loadgroup")


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("arguments", [IN_ONE_PROCESS, IN_WORKERS], ids=["one process", "workers"])
def test_the_run_ends_with_every_skip_grouped_by_its_reason(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).write_text("if True:\n" + text)
    done = run_pytest(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(LISTED), done.stdout


def test_a_run_that_skipped_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text("def test_passes(): pass\n")
    done = run_pytest(tmp_path, *IN_ONE_PROCESS)
    assert done.stdout.endswith("could not run: nothing, every test that was asked for ran\n"), done.stdout


def test_a_failure_still_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_bad.py").write_text("def test_fails(): assert False\n")
    assert run_pytest(tmp_path, *IN_WORKERS).returncode == 1
