"""How pages are taken apart: a block that is overlooked would be one that is never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, page_of
from tests.docs.page_run import PageFailed, PageRun, check_data
from tests.docs.shell_lines import Kind, Piece, commands_of, complaint_about, pieces

PAGE = """# A page

```python
print("shown")
```

<!-- not run: it needs the moon -->
```sh
fly --to moon
```

<!-- run: python
assert "hidden"
-->

<!-- part of: examples/orders.py -->
```python
import penstock as ps
```

- in a list:

    ```console
    $ penstock topics
    ```

```python
# app.py
```
"""


def test_blocks_are_found_with_what_is_said_about_them() -> None:
    shown, moon, hidden, part, in_list, file = page_of("a.md", PAGE).blocks
    assert (shown.language, shown.line, shown.is_run) == ("python", 4, True)
    assert (moon.why_not, moon.is_run) == ("it needs the moon", False)
    assert (hidden.text, hidden.shown, hidden.is_run, hidden.why_not) == ('assert "hidden"\n', False, True, "")
    assert (part.part_of, part.is_run) == ("examples/orders.py", False)
    assert (in_list.language, in_list.text, in_list.is_run) == ("console", "$ penstock topics\n", True)
    assert (file.file, file.is_run, file.part_of) == ("app.py", True, "")


def test_a_reason_counts_for_the_next_block_only_and_only_if_nothing_stands_between() -> None:
    between, after = page_of("a.md", "<!-- not run: because -->\nWords.\n```sh\na\n```\n```sh\nb\n```\n").blocks
    assert (between.why_not, after.why_not) == ("", "")


def test_a_page_that_mentions_spark_in_what_is_run_shares_the_session() -> None:
    assert page_of("a.md", "```sh\npenstock run usage.py --once\n```\n").needs_spark
    assert not page_of("a.md", "<!-- not run: no cluster here -->\n```sh\npenstock run usage.py\n```\n").needs_spark


def test_of_a_console_only_what_is_typed_is_run() -> None:
    text = "$ penstock topics create a \\\n    --partitions 3\ncreated\n$ penstock topics\na  3\n"
    assert commands_of("console", text) == "penstock topics create a \\\n    --partitions 3\npenstock topics\n"


def test_what_serves_is_started_what_installs_is_looked_at_and_the_rest_is_run_together() -> None:
    text = "make demo  # all of it\na=1\necho $a\npenstock serve --data ./data\n"
    text += "penstock metrics --once\nsleep 9 &\nkill %1\n"
    assert list(pieces(text)) == [
        Piece(Kind.LOOK, "make demo  # all of it"),
        Piece(Kind.RUN, "a=1\necho $a"),
        Piece(Kind.START, "penstock serve --data ./data"),
        Piece(Kind.RUN, "penstock metrics --once"),
        Piece(Kind.START, "sleep 9"),
        Piece(Kind.STOP, "kill %1"),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("make test TEST=tests/log", None),
        ("make coffee", "the Makefile has no coffee"),
        ('pip install "penstock[spark,postgres]" pytest', None),
        ("pip install .", None),
        ("pip install 'penstock[sparc]'", "penstock has no extra 'sparc'"),
        ("pip install pensotck", "pensotck is neither"),
    ],
)
def test_targets_and_extras_must_exist(line: str, complaint: str | None) -> None:
    found = complaint_about(line)
    assert found == complaint if complaint is None else complaint in str(found)


@pytest.mark.parametrize("text", ["{'a': 1}", '{"a": 1'])
def test_data_that_is_none_is_told(text: str) -> None:
    with pytest.raises(PageFailed, match=r"a\.md:1 is no json"):
        check_data(Block("a.md", 1, "json", text))


@pytest.mark.parametrize(
    ("language", "text", "complaint"),
    [
        ("sh", "true\nfalse\n", "ended with 1"),
        ("sh", "false | cat\n", "ended with 1"),
        ("sh", "echo $UNKNOWN_VARIABLE\n", "unbound variable"),
        ("console", "$ false\n", "ended with 1"),
        ("sh", "make coffee\n", "the Makefile has no coffee"),
    ],
)
def test_commands_that_fail_fail_the_page(language: str, text: str, complaint: str, tmp_path: Path) -> None:
    with PageRun(tmp_path, {}, type(pytest)("page")) as page, pytest.raises(PageFailed, match=complaint):
        page.run(Block("a.md", 3, language, text))


def test_python_that_raises_fails_the_page_at_its_own_line(tmp_path: Path) -> None:
    with PageRun(tmp_path, {}, type(pytest)("page")) as page, pytest.raises(ZeroDivisionError) as raised:
        page.run(Block("a.md", 41, "python", "a = 1\na / 0\n"))
    assert raised.traceback[-1].lineno + 1 == 42


def test_a_test_that_a_block_defines_is_called(tmp_path: Path) -> None:
    with PageRun(tmp_path, {}, type(pytest)("page")) as page, pytest.raises(AssertionError):
        page.run(Block("a.md", 1, "python", "def test_nothing():\n    assert False\n"))


def test_blocks_of_a_page_share_names_folder_and_exports(tmp_path: Path) -> None:
    with PageRun(tmp_path, {"host:9092": "127.0.0.1:1"}, type(pytest)("page")) as page:
        page.run(Block("a.md", 1, "python", "word = 'host:9092'\n"))
        page.run(Block("a.md", 2, "python", "assert word == '127.0.0.1:1'\n"))
        page.run(Block("a.md", 3, "sh", "export WORD=left\nmkdir sub && cd sub\n"))
        page.run(Block("a.md", 4, "sh", 'test "$WORD" = left && touch here\n'))
    assert (tmp_path / "sub" / "here").exists()


def test_a_port_of_the_page_is_the_same_free_one_everywhere(tmp_path: Path) -> None:
    main = type(pytest)("page")
    with PageRun(tmp_path, {}, main) as page:
        page.run(Block("a.md", 1, "python", "first = '127.0.0.1:9092'\n"))
        page.run(Block("a.md", 2, "python", "second = 'localhost:9092'\n"))
    assert main.first.partition(":")[2] == main.second.partition(":")[2] != "9092"
