"""The optional packages: whether they are installed, recent enough, and importable."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.cli.checks.finding import Finding, fail, ok, warn
from penstock.errors import ConfigError

MODULES: Final = {
    "aiohttp": "aiohttp",
    "boto3": "boto3",
    "deltalake": "deltalake",
    "duckdb": "duckdb",
    "fastavro": "fastavro",
    "google-cloud-pubsub": "google.cloud.pubsub_v1",
    "mmh3": "mmh3",
    "nats-py": "nats",
    "nicegui": "nicegui",
    "numba": "numba",
    "numpy": "numpy",
    "opentelemetry-api": "opentelemetry.trace",
    "pandas": "pandas",
    "pika": "pika",
    "protobuf": "google.protobuf",
    "psycopg": "psycopg",
    "psycopg-pool": "psycopg_pool",
    "pulsar-client": "pulsar",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pynng": "pynng",
    "pyspark": "pyspark",
    "python-qpid-proton": "proton",
    "pyzmq": "zmq",
    "redis": "redis",
    "stomp-py": "stomp",
}
BROUGHT: Final = {("psycopg", "pool"): "psycopg-pool"}
"""Packages that an extra of a requirement installs, and that we import."""
GATHERING: Final = frozenset({"all", "demo"})
"""Extras that only combine others."""
SLOW: Final = ("pandas", "numba", "nicegui")
"""Packages that take a second or more to import, tried last."""
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^\]]*)\])?\s*\(?(?P<versions>[^;)]*)\)?\s*;.*extra\s*==\s*[\"'](?P<extra>[^\"']+)"
)
_TRYING: Final = """
import importlib, sys
for name in sys.argv[1:]:
    print("?", name, flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        print("-", name, type(error).__name__, str(error).split(chr(10))[0], flush=True)
    else:
        print("+", name, flush=True)
"""

Versions = Callable[[str], str | None]
Import = Callable[[Sequence[str], float], Mapping[str, str | None]]


@dataclass(slots=True)
class Extra:
    """One extra: the packages that it needs, with their version ranges."""

    name: str
    packages: dict[str, str] = field(default_factory=dict)


def check_extras(
    within_s: float,
    extras: Mapping[str, Extra] | None = None,
    version_of: Versions | None = None,
    import_all: Import | None = None,
) -> list[Finding]:
    """Findings about the extras. Packages are imported in another process, as a broken one may crash it. Those for
    which there was no time count as working."""
    known = declared() if extras is None else extras
    find = version_of or installed_version
    versions = {package: find(package) for extra in known.values() for package in extra.packages}
    there = [package for package, version in versions.items() if version is not None]
    modules = {MODULES[package]: package for package in sorted(there, key=_slowest_last) if package in MODULES}
    tried = (import_all or try_imports)(list(modules), within_s)
    broken = {modules[module]: error for module, error in tried.items() if error is not None}
    working, absent, found = [], [], []
    for name, extra in known.items():
        missing = [package for package in extra.packages if versions[package] is None]
        old = [package for package, wanted in extra.packages.items() if not satisfies(versions[package], wanted)]
        ill = [package for package in extra.packages if package in broken]
        install = f"pip install 'penstock[{name}]'"
        if ill:
            found.append(
                fail(f"extra {name}", "; ".join(f"{each}: {broken[each]}" for each in ill), f"{install}, or without it")
            )
        elif len(missing) == len(extra.packages):
            absent.append(name)
        elif missing:
            found.append(warn(f"extra {name}", f"{', '.join(missing)} not installed, the rest is", install))
        elif old:
            text = ", ".join(f"{each} {versions[each]} (wants {extra.packages[each]})" for each in old)
            found.append(warn(f"extra {name}", text, f"{install} --upgrade"))
        else:
            working.append(name)
    untried = [package for module, package in modules.items() if module not in tried]
    note = f" (no time to import {', '.join(untried)}: --within 30s)" if untried else ""
    found.insert(0, ok("extras", f"{', '.join(working) or 'none'} installed{note}"))
    if absent:
        found.append(ok("extras", f"not installed: {', '.join(absent)}; pip install 'penstock[NAME]' if you need one"))
    return found


def declared(requirements: Iterable[str] | None = None) -> dict[str, Extra]:
    """The extras in penstock's own metadata, without those that only combine others."""
    try:
        lines = list(requirements if requirements is not None else importlib.metadata.requires("penstock") or ())
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError("penstock is not installed: pip install it to see its extras") from error
    found: dict[str, Extra] = {}
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is not None and match["name"] != "penstock" and match["extra"] not in GATHERING:
            extra = found.setdefault(match["extra"], Extra(match["extra"]))
            extra.packages[match["name"]] = match["versions"].strip()
            for part in (match["extras"] or "").split(","):
                if (package := BROUGHT.get((match["name"], part.strip()))) is not None:
                    extra.packages[package] = ""
    return dict(sorted(found.items()))


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def satisfies(version: str | None, wanted: str) -> bool:
    """Whether a version is in a range such as `>=2.2,<3`, by its numbers. A missing version or range matches."""
    if version is None:
        return True
    has = _numbers(version)
    for clause in filter(None, (each.strip() for each in wanted.split(","))):
        match = re.fullmatch(r"(>=|<|==|>|<=|!=|~=)\s*(.+)", clause)
        if match is None:
            continue
        bound = _numbers(match[2])
        length = max(len(has), len(bound))
        left, right = (each + (0,) * (length - len(each)) for each in (has, bound))
        fits = {">=": left >= right, "~=": left >= right, "<": left < right, "<=": left <= right, ">": left > right}
        if not fits.get(match[1], True):
            return False
    return True


def try_imports(modules: Sequence[str], within_s: float) -> dict[str, str | None]:
    """Import each in another process; None: it works. Modules for which there was no time are missing."""
    deadline_s = time.monotonic() + within_s
    tried: dict[str, str | None] = {}
    left = list(modules)
    while left and time.monotonic() < deadline_s:
        ended_well = _try_some(left, deadline_s, tried)
        if ended_well:
            break
        left = [module for module in left if module not in tried]
    return tried


def _try_some(modules: Sequence[str], deadline_s: float, tried: dict[str, str | None]) -> bool:
    """Import these modules in a process, and note the outcomes in `tried`. False if the process crashed: try the
    others again."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TRYING, *modules],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    alarm = threading.Timer(max(0.0, deadline_s - time.monotonic()), process.kill)
    alarm.daemon = True
    alarm.start()
    current = ""
    try:
        for line in process.stdout:
            mark, _, rest = line.rstrip("\n").partition(" ")
            name, _, error = rest.partition(" ")
            if mark == "?":
                current = name
            elif mark in ("+", "-") and name == current:
                tried[name] = None if mark == "+" else error
                current = ""
        process.wait()
    finally:
        alarm.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
    if current and time.monotonic() < deadline_s:
        tried[current] = f"importing it crashes Python (exit code {process.returncode})"
        return False
    return True


def _slowest_last(package: str) -> tuple[int, str]:
    return (SLOW.index(package) + 1 if package in SLOW else 0), package


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:4])
