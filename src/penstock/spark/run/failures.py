"""The failure of a query in one line: the error, its place in the program, and the records being processed.

Spark wraps an error of a user's function: Python's traceback becomes text inside a Java exception, which the task, the
job and the query wrap again. `failure_of` finds the original error.
"""

from __future__ import annotations

import json
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from penstock.spark.sessions.program_files import PACKAGE

LONGEST_TEXT: Final = 1_000
MOST_PARTITIONS: Final = 4
"""How many partitions of a batch are listed; the others are counted."""

_TRACEBACK: Final = "Traceback (most recent call last):\n"
_FRAME: Final = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$', re.MULTILINE)
_MODULE: Final = re.compile(r"^(?:[A-Za-z_$][\w$]*\.)+(?=[A-Za-z_$][\w$]*(?::|$))")
_JAVA_ERROR: Final = re.compile(r"^(?:Caused by: )?(?P<name>(?:[\w$]+\.)+[\w$]+)(?:: (?P<message>.*))?$", re.DOTALL)
_IN_TASK: Final = re.compile(
    r"Job aborted due to stage failure: .*?most recent failure: .*? executor [^)]*\): ", re.DOTALL
)
_OF_QUERY: Final = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", re.DOTALL)
_SQL: Final = re.compile(r"\n== SQL[^\n]*==\n(?P<sql>.*?)\n\s*\^+\s*$", re.DOTALL | re.MULTILINE)
_CALLED_FROM: Final = re.compile(
    r"\n== DataFrame ==\n\"(?P<method>[^\"]+)\" was called from\n(?P<file>.+):(?P<line>\d+)"
)
_STATE: Final = re.compile(r"(?:\s*SQLSTATE: [0-9A-Z]{5})+\s*\Z")
_OF_EXECUTION: Final = "\n=== Streaming Query ==="
"""The start of Spark's description of the failed query, whose plan may be very long."""
_WRAPPERS: Final = (
    "StreamingQueryException",
    "ForeachBatchUserFuncException",
    "Py4JException",
    "Py4JJavaError",
    "ExecutionException",
    "CompletionException",
)
_EMPTY_WORDS: Final = ("Job aborted", "Exception thrown in awaitResult", "Multiple failures in stage")

_OURS: Final = str(PACKAGE)
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_COMPILED: Final = (".pyx", ".pxi", ".pxd", ".c")
"""Source files that traceback frames of compiled libraries name."""
_INSTALLED: Final = re.compile(
    r"/(?:site-packages|dist-packages|pyspark\.zip|py4j[^/]*\.zip)/|/lib/python3[^/]*/|^<frozen "
)


_OF_WRITER: Final = re.compile(r"(?P<message>rows were not written: (?:.(?!\tat ))*)")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as shown in logs, progress, the console, alerts and the error that ends a run."""

    kind: str
    """The class of the exception, without its module."""
    message: str
    """The message in one line."""
    place: str | None = None
    """The file and line of the program, and the function or the SQL text."""
    records: str | None = None
    """The offsets that were being processed, if Spark reports them."""
    complete: str = ""
    """The tracebacks of Python and Java."""

    @property
    def text(self) -> str:
        """Kind, message, place and records in one line."""
        where = f", at {self.place}" if self.place else ""
        while_reading = f"; while processing {self.records}" if self.records else ""
        room = max(200, LONGEST_TEXT - len(where) - len(while_reading) - len(self.kind))
        message = self.message if len(self.message) <= room else self.message[: room - 1] + "…"
        return f"{self.kind}{': ' if message else ''}{message}{where}{while_reading}"


def failure_of(error: BaseException, ended: BaseException | None = None, topics: Sequence[str] = ()) -> Failure:
    """The failure behind an error.

    `ended` is the error with which Spark ended the query, if it is a different one: it knows the offsets of the batch.
    `topics` are the sources of the query in Spark's order.
    """
    text, java = str(error).partition("\n\nJVM stacktrace:")[0].strip(), _java_stack(error)
    found = _raised_in_python(text) or _raised_in_python(java) or _raised_by_writer(java)
    if found is None and _is_of_spark(error):
        found = _raised_by_spark(error, text, java)
    if found is None:
        found = type(error).__name__, text, None
    kind, message, place = found
    return Failure(
        kind=kind,
        message=_one_line(message),
        place=place or _place_in(_frames_of(error)),
        records=_records(ended or error, topics),
        complete=_complete(error, ended),
    )


def _is_of_spark(error: BaseException) -> bool:
    return any(each.__module__.startswith(("pyspark.", "py4j.")) for each in type(error).__mro__)


def _raised_in_python(text: str) -> tuple[str, str, str | None] | None:
    """The exception of the last traceback in a text: its causes are printed before it."""
    _, is_there, last = text.partition(_OF_EXECUTION)[0].rpartition(_TRACEBACK)
    if not is_there:
        return None
    lines = last.splitlines()
    start = next((index for index, line in enumerate(lines) if line and not line[0].isspace()), None)
    if start is None:
        return None
    rest = []
    for line in lines[start:]:
        if line.startswith(("\tat ", "Caused by: ", "Driver stacktrace:", "During handling of", "The above exception")):
            break
        rest.append(line)
    kind, _, message = _STATE.sub("", "\n".join(rest)).partition(":")
    frames = [(each["file"], int(each["line"]), each["function"] or "") for each in _FRAME.finditer(last)]
    return _MODULE.sub("", kind.strip()), message.strip(), _place_in(frames)


def _raised_by_writer(java: str) -> tuple[str, str, str | None] | None:
    """The error of the writer of tables in real-time mode, which interrupts its task."""
    matched = _OF_WRITER.search(java)
    return None if matched is None else ("DeliveryError", matched["message"], None)


def _java_stack(error: BaseException) -> str:
    """The Java stack trace of an error; empty for a pure Python error."""
    stack = getattr(error, "_stackTrace", None)
    if isinstance(stack, str):
        return stack
    return str(error).partition("\n: ")[2] if isinstance(error, Py4JJavaError) else ""


def _raised_by_spark(error: BaseException, text: str, java: str) -> tuple[str, str, str | None]:
    """The first error that is not merely a wrapper, followed by its root cause."""
    text = _unwrapped(text)
    place = _place_in_query(text)
    telling = [
        (name, message)
        for name, message in _java_errors(java)
        if name not in _WRAPPERS and not message.startswith(_EMPTY_WORDS)
    ]
    if not telling:
        matched = _JAVA_ERROR.match(text.splitlines()[0]) if text else None
        if matched:
            return _simple(matched["name"]), matched["message"] or "", place
        return type(error).__name__, _without_query(text), place
    (kind, message), (root, cause) = telling[0], telling[-1]
    message = _without_query(message)
    place = place or _place_in_query(telling[0][1])
    if (root, cause) != telling[0] and cause not in message:
        message = f"{message}; caused by {root}: {_without_query(cause)}"
    return kind, message, place


def _java_errors(stack: str) -> Iterator[tuple[str, str]]:
    """Name and message of a Java exception and of each of its causes, outermost first."""
    header: list[str] = []
    for line in [*stack.splitlines(), "\tat the end"]:
        if line.startswith(("Caused by: ", "\t")):
            if header and (found := _JAVA_ERROR.match("\n".join(header))):
                told = _unwrapped(found["message"] or "")
                inner = _JAVA_ERROR.match(told) if _IN_TASK.match(found["message"] or "") else None
                yield (_simple(inner["name"]), inner["message"] or "") if inner else (_simple(found["name"]), told)
            header = [line] if line.startswith("Caused by: ") else []
        elif header or line == stack.partition("\n")[0]:
            header.append(line)


def _unwrapped(text: str) -> str:
    """The text without Spark's introduction about the query and the task."""
    text = text.partition(_OF_EXECUTION)[0]
    if _OF_QUERY.match(text):
        text = _STATE.sub("", _OF_QUERY.sub("", text))
    in_task = _IN_TASK.match(text)
    return text[in_task.end() :].partition("\n\tat ")[0].partition("\n\nDriver stacktrace:")[0] if in_task else text


def _without_query(text: str) -> str:
    """The text without the piece of the query that Spark prints below it: `place` is shorter."""
    return text.partition("\n== SQL")[0].partition("\n== DataFrame")[0]


def _place_in_query(text: str) -> str | None:
    if called := _CALLED_FROM.search(text):
        return f"{_shown(called['file'])}:{called['line']} in {called['method']}"
    if sql := _SQL.search(text):
        return f"SQL {_one_line(sql['sql'])[:200]!r}"
    return None


def _simple(name: str) -> str:
    return name.rpartition(".")[2]


def _one_line(text: str) -> str:
    """The text without line breaks and control characters: an error may quote a record."""
    words = " ".join(text.split())
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in words)


def _frames_of(error: BaseException) -> list[tuple[str, int, str]]:
    return [(each.filename, each.lineno or 0, each.name) for each in traceback.extract_tb(error.__traceback__)]


def _place_in(frames: Sequence[tuple[str, int, str]]) -> str | None:
    """The innermost frame of the user's program, else of a library other than Spark and Penstock."""
    for matches in (_is_users, _is_foreign):
        for file, line, function in reversed(frames):
            if matches(file):
                return f"{_shown(file)}:{line}{f' in {function}' if function else ''}"
    return None


def _is_users(file: str) -> bool:
    return not file.startswith((_OURS, *_LIBRARIES)) and not _INSTALLED.search(file) and not file.endswith(_COMPILED)


def _is_foreign(file: str) -> bool:
    """Whether a file is in an installed package other than Spark and Penstock."""
    packages = re.search(r"/(?:site|dist)-packages/(?P<package>[^/]+)", file)
    return packages is not None and packages["package"] not in ("pyspark", "py4j", "penstock")


def _shown(file: str) -> str:
    """The path, relative to the working folder if it is below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else file


def _records(ended: BaseException, topics: Sequence[str]) -> str | None:
    """The offsets of the failed batch: from the committed to the planned ones."""
    origin: Any = getattr(ended, "_origin", None)
    try:
        before, planned = (_offsets(str(each)) for each in (origin.startOffset(), origin.endOffset()))
    except Exception:  # not an error of a query, or the JVM is gone
        return None
    ranges = []
    for number, end in enumerate(planned):
        begin = before[number] if number < len(before) else {}
        topic = topics[number].removeprefix("topic ") if number < len(topics) else f"source {number}"
        ranges += list(_ranges(begin, end, topic))
    if not ranges:
        return None
    more = f" and of {len(ranges) - MOST_PARTITIONS} more partitions" if len(ranges) > MOST_PARTITIONS else ""
    return ", ".join(ranges[:MOST_PARTITIONS]) + more


def _offsets(text: str) -> list[Mapping[str, Any]]:
    """The offsets of each source of a query, from text such as `[{"0":3}, -]`: a dash means none yet."""
    found = json.loads(re.sub(r"(?<=[\[,])\s*-(?=\s*[,\]])", "null", text))
    return [each if isinstance(each, Mapping) else {} for each in found]


def _ranges(begin: Mapping[str, Any], end: Mapping[str, Any], topic: str) -> Iterable[str]:
    for name, value in end.items():
        if isinstance(value, Mapping):  # Spark's Kafka connector: {"topic": {"0": 3}}
            yield from _ranges(begin.get(name) or {}, value, name)
        elif isinstance(value, int) and name.isdecimal():
            first = begin.get(name)
            if isinstance(first, int) and first < value:
                yield f"{topic} partition {name} offset{'s' if value - first > 1 else ''} " + (
                    f"{first} to {value - 1}" if value - first > 1 else f"{first}"
                )
            elif first is None and value > 0:
                yield f"{topic} partition {name} offsets up to {value - 1}"


def _complete(error: BaseException, ended: BaseException | None) -> str:
    parts = ["".join(traceback.format_exception(error))]
    for each in (error, ended):
        if each is not None and (stack := _java_stack(each)) and stack not in "".join(parts):
            parts.append(stack)
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
