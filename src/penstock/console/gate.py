"""The gate: every change goes through here.

It refuses changes in read-only mode, writes the audit log before and after, and refuses what cannot be logged. Every
service method that takes `by: Person` is behind it; a test checks all of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from penstock.console.audit import AuditLog
from penstock.console.jobs import Job
from penstock.console.views import Person
from penstock.errors import ReadOnlyError
from penstock.streams.url import without_password

_LONGEST_TEXT: Final = 500
_MOST_PARTS: Final = 50

P = ParamSpec("P")
Result = TypeVar("Result")


class Guarded(Protocol):
    @property
    def read_only(self) -> bool: ...

    @property
    def audit_log(self) -> AuditLog: ...


Owner = TypeVar("Owner", bound=Guarded)


def changing(
    method: Callable[Concatenate[Owner, Person, P], Result],
) -> Callable[Concatenate[Owner, Person, P], Result]:
    """Decorate a method that changes something."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def gated(self: Owner, by: Person, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        if self.read_only:
            raise ReadOnlyError(
                f"this console is read-only: {method.__name__.replace('_', ' ')} was refused. Start it without "
                "--read-only to make changes"
            )
        bound = signature.bind(self, by, *args, **kwargs)
        parameters = {name: told(value) for name, value in list(bound.arguments.items())[2:]}
        action = self.audit_log.begin(by, method.__name__, parameters)
        try:
            result = method(self, by, *args, **kwargs)
        except BaseException as error:
            action.end(False, f"{type(error).__name__}: {error}")
            raise
        if isinstance(result, Job):
            result.when_done(lambda job: action.end(job.error is None, job.outcome()))
        else:
            action.end(True, "" if result is None else msgspec.json.encode(told(result)).decode())
        return result

    return gated


def told(value: Any) -> Any:
    """A parameter as the audit log keeps it: JSON, cut to a readable length."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, msgspec.Struct):
        return told(msgspec.to_builtins(value))
    if is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: told(part) for name, part in given.items() if part not in (None, "", (), frozenset())}
    if isinstance(value, Mapping):
        return {str(name): told(part) for name, part in list(value.items())[:_MOST_PARTS]}
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        parts = sorted(value) if isinstance(value, set | frozenset) else list(value)
        kept = [told(part) for part in parts[:_MOST_PARTS]]
        return kept if len(parts) <= _MOST_PARTS else [*kept, f"and {len(parts) - _MOST_PARTS} more"]
    text = without_password(str(value).encode(errors="replace").decode())
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text):,} characters)"
