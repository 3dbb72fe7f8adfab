"""`penstock sql`: queries from the command line, from standard input, and at a prompt."""

from __future__ import annotations

import csv
import io
import os
import pty
import subprocess
from pathlib import Path

import pytest

import penstock
from tests.cli.running import COMMAND, Command


def test_a_query_is_printed_as_a_table(run: Command, numbers: str) -> None:
    done = run.well("sql", f'select "offset", key, value from "{numbers}" order by 1 limit 2')
    assert done.out.split("\n")[:3] == ["offset  key    value", "     0  key-0  0", "     1  key-1  1"]
    assert "2 rows (" in done.err


def test_a_query_is_printed_as_json_lines(run: Command, numbers: str) -> None:
    query = (
        f"select sum(value::int) as total, max(timestamp) > '2020-01-01' as late, null as nothing from \"{numbers}\""
    )
    assert run.well("sql", query, "--format", "json").json_lines == [{"total": 45, "late": True, "nothing": None}]


def test_a_query_is_printed_as_csv(run: Command, numbers: str) -> None:
    out = run.well("sql", f'select key, \'a,"b\' as odd from "{numbers}" order by 1', "-n", "2", "--format", "csv").out
    assert list(csv.reader(io.StringIO(out))) == [["key", "odd"], ["key-0", 'a,"b'], ["key-1", 'a,"b']]


def test_a_query_is_read_from_standard_input(run: Command, numbers: str) -> None:
    done = run.well("sql", "--format", "json", given=f'select count(*) as n\nfrom "{numbers}"\n')
    assert done.json_lines == [{"n": 10}]


def test_a_limit_says_that_there_are_more_rows(run: Command, numbers: str) -> None:
    assert "3 rows: there are more, see --limit" in run.well("sql", f'from "{numbers}"', "--limit", "3").err


def test_what_cannot_be_decoded_is_a_warning_or_an_error(run: Command, stream: penstock.Connection, topic: str) -> None:
    for data in (b"text", b"more text", b"\xff"):
        stream.send(topic, data)
    stream.flush(20)
    assert "1 cell could not be decoded, and is null" in run.well("sql", f'select value from "{topic}"').err
    refused = run("sql", f'select value from "{topic}"', "--undecodable", "error")
    assert refused.code == 1
    assert "its value cannot be decoded" in refused.err


def test_a_module_says_the_types_of_topics(
    run: Command, stream: penstock.Connection, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "import dataclasses, penstock\n@dataclasses.dataclass\nclass Order:\n    cents: int\n"
    (tmp_path / "shop_topics.py").write_text(f"{module}ORDERS = penstock.Topic({topic!r}, Order, serde='msgpack')\n")
    monkeypatch.chdir(tmp_path)
    stream.send(topic, b"\x81\xa5cents\x07").result(20)
    query = f'select sum(cents)::int as cents from "{topic}"'
    for name in ("shop_topics", "shop_topics:ORDERS"):
        assert run.well("sql", query, "--types", name, "--format", "json").json_lines == [{"cents": 7}]
    for name, message in (
        ("shop_topics:Order", "shop_topics has no 'Order' that is a penstock.Topic"),
        ("json", "json has no variable that is a penstock.Topic"),
        ("shop_nowhere", "shop_nowhere cannot be imported"),
    ):
        refused = run("sql", query, "--types", name)
        assert (refused.code, refused.out) == (1, "")
        assert message in refused.err


def test_mistakes_are_one_message_and_exit_code_1(run: Command, numbers: str) -> None:
    for query, message in (
        (f"from {numbers[:-1].replace('-', '_')}", "there is no topic"),
        ("drop table x", "DROP is not allowed: queries only read topics"),
        ("from '/etc/passwd'", "there is no topic '/etc/passwd'"),
    ):
        done = run("sql", query)
        assert (done.code, done.out) == (1, "")
        assert message in done.err
        assert "Traceback" not in done.err
    assert "longer than 0.3 s" in run("sql", "select count(*) from range(1000000000000)", "--timeout", "300ms").err


def test_a_prompt_answers_query_after_query(run: Command, numbers: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "sql"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=run.environment, text=True
    ) as prompt:
        os.write(ours, f'select count(*) as n\nfrom "{numbers}";\nselec;\nselect 7 as seven;\nexit\n'.encode())
        out, err = prompt.communicate(timeout=60)
        os.close(ours)
        os.close(theirs)
    assert prompt.returncode == 0, err
    assert "10" in out
    assert "seven" in out
    assert "syntax error" in err
