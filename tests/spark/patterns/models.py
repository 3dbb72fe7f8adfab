"""What patterns must find, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

Change = tuple[float, str | None]


def as_of(changes: list[Change], when: float) -> str | None:
    """Of changes in the order of their topic, what applies then. No change precedes the one before it."""
    found, reached = None, float("-inf")
    for since, city in changes:
        reached = max(reached, since)
        if reached <= when:
            found = city
    return found


Numbered = tuple[int, float, set[int]]
"""A number, a time, and the steps that it can be."""


def matches(
    events: Sequence[Numbered], steps: int, within: float, *, adjacent: bool, overlapping: bool
) -> list[tuple[int, ...]]:
    """Follow each beginning on its own, then drop those that others have ended."""
    ordered = sorted(events, key=lambda event: (event[1], event[0]))
    found: list[tuple[int, ...]] = []
    for first, (_, began, can_be) in enumerate(ordered):
        if 0 not in can_be:
            continue
        places = [first]
        for place in range(first + 1, len(ordered)):
            if ordered[place][1] > began + within:
                break
            if len(places) in ordered[place][2]:
                places.append(place)
                if len(places) == steps:
                    found.append(tuple(places))
                    break
            elif adjacent:
                break
    if not overlapping:
        kept: list[tuple[int, ...]] = []
        for match in sorted(found, key=lambda places: (places[-1], places[0])):
            if not kept or match[0] > kept[-1][-1]:
                kept.append(match)
        found = kept
    return sorted(tuple(ordered[place][0] for place in match) for match in found)
