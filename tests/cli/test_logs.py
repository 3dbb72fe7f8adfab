"""What the command's processes log: nothing that was sent to them can forge a line or give orders to the terminal."""

from __future__ import annotations

import json
import logging
import sys

from penstock.cli.logs import JsonFormatter, TextFormatter

FORGED = "a\nERROR root: forged\r\x1b[31m\udc80"


def record(message: str, *values: object, error: Exception | None = None) -> logging.LogRecord:
    try:
        if error is not None:
            raise error
        info = None
    except Exception:
        info = sys.exc_info()
    return logging.LogRecord("penstock.x", logging.WARNING, __file__, 1, message, values, info)


def test_what_a_message_quotes_is_escaped() -> None:
    line = TextFormatter("%(levelname)s: %(message)s").format(record("group %s is gone", FORGED))
    assert line == r"WARNING: group a\nERROR root: forged\r\x1b[31m\udc80 is gone"


def test_the_lines_of_a_traceback_are_indented_and_escaped() -> None:
    first, *trace = TextFormatter("%(message)s").format(record("failed", error=ValueError(FORGED))).split("\n")
    assert first == "failed"
    assert trace[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in trace)
    assert "    ERROR root: forged" in trace


def test_json_is_one_line_of_ascii_that_keeps_what_was_said() -> None:
    made = record("group %s is gone", FORGED)
    made.group = FORGED
    line = JsonFormatter().format(made)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"group {FORGED} is gone"
    assert json.loads(line)["group"] == FORGED
