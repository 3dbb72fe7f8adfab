"""What must not stand in any text file of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.tidy.source import Complaint, Source

# The patterns are put together from pieces so that this file does not contain what it forbids.
LATER: Final = re.compile(r"\b(TO" + r"DO|FIX" + r"ME)\b")
MACHINE_PATH: Final = re.compile(r"(?<![\w.}~/-])/(?:work|root|home)" + r"/")
REGISTRY: Final = re.compile(
    r"https?://[^\s\"'<>)]*?(?:registry\.|artifactory|nexus|/simple\b|/repository/|\brepo\d?\.maven)", re.IGNORECASE
)


def nothing_is_left_for_later(source: Source) -> Iterator[Complaint]:
    """Work that is not done belongs in an issue, where somebody will find it."""
    yield from _every(source, LATER, "finish it or open an issue; a note in the file is never read again")


def no_path_of_one_machine(source: Source) -> Iterator[Complaint]:
    """A path that exists on one machine works on one machine."""
    yield from _every(source, MACHINE_PATH, "a path of one machine: take it from an argument, or from the checkout")


def no_package_registry(source: Source) -> Iterator[Complaint]:
    """Where packages come from is a setting of the machine, not of the repository."""
    yield from _every(source, REGISTRY, "the address of a package registry: leave it to the settings of the machine")


def _every(source: Source, pattern: re.Pattern[str], text: str) -> Iterator[Complaint]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        found = pattern.search(line)
        if found:
            yield source.complain(number, f"`{found.group(0)}`: {text}")
