"""How the command's processes log: lines for people, or one JSON object a line for programs. To standard error."""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

from penstock.errors import ConfigError

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and whatever was given as `extra`, as one JSON object."""

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
        return msgspec.json.encode(entry, enc_hook=str).decode()


def configure_logging(level: str, as_json: bool) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"--log-level {level!r} is not one of debug, info, warning, error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
