"""Schemes: the installed backends, and the one that opens a URL.

Backends are found by entry points, our own like those of other packages. The groups are listed below; the name of an
entry point is the scheme, and its value opens a URL. docs/plugins.md shows how a package adds one. A backend is
imported when its scheme is first used.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError, UrlError

STREAMS: Final = "penstock.streams"
"""`open(url: str, options: Mapping[str, Any]) -> abc.Stream`, with the options of `connect`. Raises ConfigError for an
unknown option: see `check_options`."""
QUEUES: Final = "penstock.queues"
"""`open(url: str, options: Mapping[str, Any]) -> abc.Queue`."""
CHANNELS: Final = "penstock.channels"
"""`open(url: str, options: Mapping[str, Any]) -> abc.Channel`."""
CHECKPOINTS: Final = "penstock.checkpoints"
"""`open(url: str, stream: abc.Stream | None) -> abc.CheckpointStore`; `stream` is the one that is read, if any."""
DEAD_LETTERS: Final = "penstock.dead_letters"
"""`open(url: str) -> abc.DeadLetters`."""

_KINDS: Final = {
    STREAMS: "a stream: use penstock.connect, or App(URL) and the name of a topic",
    QUEUES: "a queue: use App.handle(URL), penstock.queues.open_queue, or `penstock gateway` to carry it into a stream",
    CHANNELS: "a channel: use penstock.channels.open_channel, or `penstock gateway` to carry it into a stream",
}
"""What a URL of each kind is, and how to use it."""
_PACKAGE: Final = "penstock"
_SCHEME: Final = re.compile(r"\s*([a-zA-Z][a-zA-Z0-9+.-]*):")


def scheme_of(url: object) -> str:
    """The scheme of a URL in lower case; "" if there is none."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    return match[1].lower() if match else ""


def installed_schemes(group: str) -> list[str]:
    others = {point.name for point in importlib.metadata.entry_points(group=group)}
    return sorted(others | _own(group).keys() | _of_checkout(group).keys())


def listed_schemes(group: str) -> str:
    """The installed schemes, for messages."""
    return ", ".join(f"{scheme}:" for scheme in installed_schemes(group)) or "none"


def has_scheme(group: str, scheme: str) -> bool:
    """Whether a backend for this scheme is installed."""
    return _entry_point(group, scheme) is not None


def opener(group: str, url: str, what: str) -> Callable[..., Any]:
    """The function that opens this URL. Raises UrlError that names the installed schemes; `what` says what it opens."""
    scheme = scheme_of(url)
    found = _entry_point(group, scheme) if scheme else None
    if found is None:
        raise UrlError(
            f"{url!r} is not a URL of {what}{what_it_is(group, scheme)}; schemes that are installed: "
            f"{listed_schemes(group)}"
        )
    try:
        return _loaded(found)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{scheme}: URLs are opened by {found.value}, of {_distribution(found)}, which cannot be imported: {error}"
        ) from error


def what_it_is(group: str, scheme: str) -> str:
    """What a URL is that is of another kind than those of `group`, and how to use it; "" if that is unknown."""
    for other, advice in _KINDS.items():
        if other != group and scheme and has_scheme(other, scheme):
            return f", but of {advice}"
    return ""


def check_options(url: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ConfigError, naming the scheme, for an option that a backend does not know."""
    unknown = given.keys() - set(known)
    if unknown:
        raise ConfigError(
            f"{scheme_of(url)}: URLs have no option {min(unknown)!r}; they have {', '.join(known) or 'none'}"
        )


@functools.cache
def _entry_point(group: str, scheme: str) -> EntryPoint | None:
    """Our own are looked up first, because searching all installed packages is slow."""
    found = _own(group).get(scheme) or _of_checkout(group).get(scheme)
    if found is not None:
        return found
    return next((point for point in importlib.metadata.entry_points(group=group) if point.name == scheme), None)


@functools.cache
def _loaded(point: EntryPoint) -> Callable[..., Any]:
    found: Callable[..., Any] = point.load()
    return found


@functools.cache
def _own(group: str) -> dict[str, EntryPoint]:
    try:
        ours = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {point.name: point for point in ours.entry_points if point.group == group}


@functools.cache
def _of_checkout(group: str) -> dict[str, EntryPoint]:
    """The backends of a source checkout, whose installed metadata may be older than its pyproject.toml."""
    project = Path(__file__).parents[3] / "pyproject.toml"
    if not project.is_file():
        return {}
    declared = tomllib.loads(project.read_text()).get("project", {})
    if declared.get("name") != _PACKAGE:
        return {}
    points = declared.get("entry-points", {}).get(group, {})
    return {name: EntryPoint(name, value, group) for name, value in points.items()}


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else _PACKAGE
