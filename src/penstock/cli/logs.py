"""Logging of the command's processes to standard error: lines for people, or JSON for programs."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, TextIO

from penstock.errors import ConfigError
from penstock.model.text import printable

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """One line per event, whatever clients sent: control characters are escaped, and tracebacks are indented.

    So no group id, topic or client id can move a terminal's cursor or forge a log line.
    """

    def __init__(
        self, layout: str = "%(asctime)s %(levelname)-7s %(name)s: %(message)s", *, before_line: str = ""
    ) -> None:
        """`before_line` is written unescaped before each event: it may contain control sequences."""
        super().__init__(layout)
        self._before_line = before_line

    def formatMessage(self, record: logging.LogRecord) -> str:
        return self._before_line + printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and any `extra`, as one JSON object in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({name: value for name, value in vars(record).items() if name not in _PLAIN})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _UnlessConfigured(logging.StreamHandler[TextIO]):
    """Shows the library's log until the program configures logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_log_of(name: str, *, quiet: bool) -> None:
    """Show a library's log on standard error while a user's program runs, which may configure logging itself.

    On a terminal, a progress line is erased first. Where there is one, or when `quiet`, only warnings and errors are
    shown, as the line shows the rest.
    """
    is_terminal = sys.stderr.isatty()
    handler = _UnlessConfigured(sys.stderr)
    handler.setFormatter(TextFormatter("%(message)s", before_line="\r\x1b[J") if is_terminal else TextFormatter())
    handler.setLevel(logging.WARNING if quiet or is_terminal else logging.INFO)
    logger = logging.getLogger(name)
    logger.handlers[:] = [*(each for each in logger.handlers if not isinstance(each, _UnlessConfigured)), handler]
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def configure_logging(level: str, as_json: bool) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"--log-level {level!r} is not one of debug, info, warning, error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
