"""Which versions of pipelines there are, what each has written, and which is current.

It stands on the noticeboard on which aliases stand, under `PIPELINE@VERSION`, so that a version becomes current in one
step with the aliases of its topics. A pipeline that was never processed again has no entry: its only version is the
first, and current.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from penstock.abc import Streams
from penstock.errors import ConfigError, PipelineError
from penstock.spark.versions.names import FIRST, By, by_age, check_version, output_topic
from penstock.streams.aliases import ALIASES_TOPIC, forget, is_alias, noticeboard, switched
from penstock.streams.noticeboard import Changes, Notices

State = Literal["reprocessing", "ready", "current", "previous", "retired"]
"""reprocessing: begun, and not yet where the inputs ended when it was; ready: it has been; current: readers are led to
its topics; previous: they were; retired: it is gone, and its name is never given again."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a pipeline."""

    pipeline: str
    version: str
    state: State
    topics: dict[str, str] = {}
    """What it writes: the topic for each name in the program."""
    by: dict[str, By] = {}
    """How what it writes is compared to another version's, for each name."""
    checkpoints: str | None = None
    """The folder with the checkpoints of the pipeline's versions."""
    since: str = ""
    """When it came to be in this state."""

    @property
    def key(self) -> str:
        return f"{self.pipeline}@{self.version}"


class Register:
    """The versions of pipelines in a system of streams."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._board = noticeboard(streams)

    def pipelines(self) -> dict[str, list[Version]]:
        """All pipelines that have more than one version, or had."""
        found: dict[str, list[Version]] = {}
        for entry in _entries(self._board.read()):
            found.setdefault(entry.pipeline, []).append(entry)
        return {name: sorted(entries, key=lambda each: by_age(each.version)) for name, entries in sorted(found.items())}

    def versions(self, pipeline: str) -> list[Version]:
        """The versions of a pipeline, oldest first; none when it has never been processed again."""
        return self.pipelines().get(pipeline, [])

    def find(self, pipeline: str, version: str) -> Version:
        versions = self.versions(pipeline)
        for entry in versions:
            if entry.version == version:
                return entry
        there = ", ".join(each.version for each in versions) or "none but the first"
        raise ConfigError(f"pipeline {pipeline!r} has no version {version!r}; it has {there}: see penstock pipelines")

    def current(self, pipeline: str) -> str:
        """The version whose results readers get."""
        return current_of(self.versions(pipeline))

    def begin(self, pipeline: str, version: str, outputs: Mapping[str, By], checkpoints: str) -> Version:
        """Note that a version is being processed from the earliest records on, before it writes anything.

        To begin one again that was interrupted goes on with it. Gives its entry.
        """
        check_version(version)

        def decide(notices: Notices) -> Changes:
            there = {entry.version: entry for entry in _entries(notices) if entry.pipeline == pipeline}
            now = current_of(list(there.values()))
            if version == now:
                raise PipelineError(
                    f"version {version} of pipeline {pipeline!r} is the current one: processing it again would write "
                    "its results twice. Leave the version away to have the next one chosen"
                )
            before = there.get(version)
            if before is not None:
                check_not_retired(before)
            if before is not None and before.state != "reprocessing":
                raise PipelineError(
                    f"version {version} of pipeline {pipeline!r} is complete ({before.state}). Switch to it: penstock "
                    f"pipelines switch {pipeline} {version}; or leave the version away to have the next one chosen"
                )
            entries = [_entry(pipeline, version, "reprocessing", outputs, checkpoints)]
            if now not in there:
                entries.append(_entry(pipeline, now, "current", outputs, checkpoints))
            return {each.key: msgspec.json.encode(each) for each in entries}

        self._board.change(decide)
        return self.find(pipeline, version)

    def caught_up(self, pipeline: str, version: str) -> None:
        """Note that a version has been where the inputs ended. It may be switched to from now on."""

        def decide(notices: Notices) -> Changes:
            entry = _required(notices, pipeline, version)
            if entry.state != "reprocessing":
                return {}
            return _restated(entry, "ready")

        self._board.change(decide)

    def switch(self, pipeline: str, version: str, expected: str) -> Mapping[str, str]:
        """Make a version current, and lead the readers of each of its names to its topics, all at once.

        AliasChangedError when `expected` is not the current version any more. Gives the names with their topics.
        """
        entry = self.find(pipeline, version)
        for topic in entry.topics.values():
            self._streams.stream(topic).partitions()  # UnknownTopicError before readers are led there

        def decide(notices: Notices) -> Changes:
            new, old = _required(notices, pipeline, version), _required(notices, pipeline, expected)
            check_not_retired(new)
            if new.state == "reprocessing":
                raise PipelineError(
                    f"version {version} of pipeline {pipeline!r} has not caught up: its results are not complete. Go "
                    f"on with it first: penstock run FILE --reprocess --version {version}"
                )
            aliases = switched(notices, new.topics, {n: old.topics.get(n, n) for n in new.topics}, pipeline, version)
            if version == expected:
                return aliases
            return {**aliases, **_restated(new, "current"), **_restated(old, "previous")}

        self._board.change(decide)
        forget(self._streams)
        return entry.topics

    def retire(self, pipeline: str, version: str) -> None:
        """Note that a version is gone. PipelineError when it is the current one."""

        def decide(notices: Notices) -> Changes:
            entry = _required(notices, pipeline, version)
            check_not_current(entry)
            return _restated(entry, "retired")

        self._board.change(decide)


def current_of(versions: Iterable[Version]) -> str:
    """The current one of a pipeline's versions."""
    return next((each.version for each in versions if each.state == "current"), FIRST)


def unfinished(versions: Iterable[Version]) -> str | None:
    """The version whose processing was begun and has not caught up; the newest, if there are several."""
    begun = [each.version for each in versions if each.state == "reprocessing"]
    return max(begun, key=by_age) if begun else None


def check_not_current(entry: Version) -> None:
    if entry.state == "current":
        raise PipelineError(
            f"version {entry.version} of pipeline {entry.pipeline!r} is the current one, and read by others: switch to "
            f"another one before you retire it: penstock pipelines switch {entry.pipeline} VERSION"
        )


def check_not_retired(entry: Version) -> None:
    if entry.state == "retired":
        raise PipelineError(
            f"version {entry.version} of pipeline {entry.pipeline!r} was retired: its checkpoints are gone. Process "
            "everything again as a version of another name: penstock run FILE --reprocess"
        )


def _entry(pipeline: str, version: str, state: State, outputs: Mapping[str, By], checkpoints: str) -> Version:
    return Version(
        pipeline=pipeline,
        version=version,
        state=state,
        topics={name: output_topic(name, version) for name in outputs},
        by=dict(outputs),
        checkpoints=checkpoints,
        since=_now(),
    )


def _restated(entry: Version, state: State) -> dict[str, bytes]:
    return {entry.key: msgspec.json.encode(msgspec.structs.replace(entry, state=state, since=_now()))}


def _required(notices: Notices, pipeline: str, version: str) -> Version:
    for entry in _entries(notices):
        if (entry.pipeline, entry.version) == (pipeline, version):
            return entry
    raise ConfigError(f"pipeline {pipeline!r} has no version {version!r} any more: see penstock pipelines")


def _entries(notices: Notices) -> list[Version]:
    found = []
    for key, text in notices.items():
        if is_alias(key):
            continue
        try:
            found.append(msgspec.json.decode(text, type=Version))
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"the entry of {key!r} in topic {ALIASES_TOPIC!r} cannot be read ({error}): it was not written by "
                "this version of Penstock, or is damaged. Remove it with a record of this key without a value"
            ) from error
    return found


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
