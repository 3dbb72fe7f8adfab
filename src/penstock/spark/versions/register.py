"""The register of pipeline versions: their topics, and which version is current.

Entries are in the topic of the aliases, with the key `PIPELINE@VERSION`, so that a version becomes current atomically
with the aliases of its topics. A pipeline that was never reprocessed has no entry: its only version is the first one,
which is current.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from penstock.abc import Stream
from penstock.errors import ConfigError, PipelineError
from penstock.spark.run.settings import RunSettings
from penstock.spark.versions.names import FIRST, By, by_age, check_version, next_version, output_topic
from penstock.streams.aliases import ALIASES_TOPIC, aliases_topic, forget, is_alias, switched
from penstock.streams.key_value_topic import Changes, Values

State = Literal["reprocessing", "ready", "current", "previous", "retiring", "retired"]
"""reprocessing: has not reached the end that the inputs had at its start; ready: has reached it; current: aliases point
to its topics; previous: they did; retiring: its runs must end, then it is deleted; retired: deleted. The name of a
retired version is not used again."""
GONE: Final = frozenset({"retiring", "retired"})
"""The states of versions that are never run again."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a pipeline."""

    pipeline: str
    version: str
    state: State
    topics: dict[str, str] = {}
    """The output topic for each name in the program."""
    by: dict[str, By] = {}
    """How each output is compared with that of another version."""
    checkpoints: str | None = None
    """The folder with the checkpoints of all versions of the pipeline."""
    since: str = ""
    """When it entered this state."""

    @property
    def key(self) -> str:
        return f"{self.pipeline}@{self.version}"


class Register:
    """The versions of the pipelines of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._topic = aliases_topic(stream)

    @property
    def is_possible(self) -> bool:
        """Whether the stream can keep versions: on others, no pipeline is reprocessed."""
        return self._topic.can_change

    def pipelines(self) -> dict[str, list[Version]]:
        """The versions of all pipelines that were ever reprocessed."""
        found: dict[str, list[Version]] = {}
        for entry in _entries(self._topic.read()):
            found.setdefault(entry.pipeline, []).append(entry)
        return {name: sorted(entries, key=lambda each: by_age(each.version)) for name, entries in sorted(found.items())}

    def versions(self, pipeline: str) -> list[Version]:
        """The versions of a pipeline, oldest first; empty if it was never reprocessed."""
        return self.pipelines().get(pipeline, [])

    def find(self, pipeline: str, version: str) -> Version:
        versions = self.versions(pipeline)
        for entry in versions:
            if entry.version == version:
                return entry
        there = ", ".join(each.version for each in versions) or "only the first"
        raise ConfigError(
            f"pipeline {pipeline!r} has no version {version!r}; it has {there}: see penstock pipelines versions"
        )

    def current(self, pipeline: str) -> str:
        """The current version."""
        return current_of(self.versions(pipeline))

    def begin(self, pipeline: str, version: str, outputs: Mapping[str, By], checkpoints: str) -> Version:
        """Register a version that is about to be reprocessed, before it writes anything, and return its entry.

        A version that was interrupted is resumed.
        """
        check_version(version)

        def decide(values: Values) -> Changes:
            there = {entry.version: entry for entry in _entries(values) if entry.pipeline == pipeline}
            now = current_of(list(there.values()))
            if version == now:
                raise PipelineError(
                    f"version {version} of pipeline {pipeline!r} is the current one: reprocessing it would write its "
                    "results twice. Omit the version to have the next one chosen"
                )
            before = there.get(version)
            if before is not None:
                check_not_retired(before)
            if before is not None and before.state != "reprocessing":
                raise PipelineError(
                    f"version {version} of pipeline {pipeline!r} is complete ({before.state}). Switch to it: penstock "
                    f"pipelines switch {pipeline} {version}; or omit the version to have the next one chosen"
                )
            entries = [_entry(pipeline, version, "reprocessing", outputs, checkpoints)]
            if now not in there:
                entries.append(_entry(pipeline, now, "current", outputs, checkpoints))
            return {each.key: msgspec.json.encode(each) for each in entries}

        self._topic.change(decide)
        return self.find(pipeline, version)

    def caught_up(self, pipeline: str, version: str) -> None:
        """Mark a version as ready, so that it can be switched to."""

        def decide(values: Values) -> Changes:
            entry = _required(values, pipeline, version)
            if entry.state != "reprocessing":
                return {}
            return _restated(entry, "ready")

        self._topic.change(decide)

    def switch(self, pipeline: str, version: str, expected: str) -> Mapping[str, str]:
        """Make a version current, and point the aliases of its outputs to its topics, atomically.

        Raises AliasChangedError if `expected` is no longer the current version. Returns the topic of each output.
        """
        entry = self.find(pipeline, version)
        for topic in entry.topics.values():
            self._stream.open_topic(topic).partitions()  # raises UnknownTopicError before an alias points there

        def decide(values: Values) -> Changes:
            new, old = _required(values, pipeline, version), _required(values, pipeline, expected)
            check_not_retired(new)
            if new.state == "reprocessing":
                raise PipelineError(
                    f"version {version} of pipeline {pipeline!r} has not caught up: its results are not complete. "
                    f"Continue it first: penstock run FILE --reprocess --version {version}"
                )
            aliases = switched(values, new.topics, {n: old.topics.get(n, n) for n in new.topics}, pipeline, version)
            if version == expected:
                return aliases
            return {**aliases, **_restated(new, "current"), **_restated(old, "previous")}

        self._topic.change(decide)
        forget(self._stream)
        return entry.topics

    def retire(self, pipeline: str, version: str, *, state: State = "retired") -> None:
        """Mark a version as retired, or as "retiring". Raises PipelineError if it is the current one."""

        def decide(values: Values) -> Changes:
            entry = _required(values, pipeline, version)
            check_not_current(entry)
            return {} if entry.state in (state, "retired") else _restated(entry, state)

        self._topic.change(decide)


def current_of(versions: Iterable[Version]) -> str:
    """The current one of a pipeline's versions."""
    return next((each.version for each in versions if each.state == "current"), FIRST)


def unfinished(versions: Iterable[Version]) -> str | None:
    """The newest version that has not caught up yet, if any."""
    begun = [each.version for each in versions if each.state == "reprocessing"]
    return max(begun, key=by_age) if begun else None


def check_not_current(entry: Version) -> None:
    if entry.state == "current":
        raise PipelineError(
            f"version {entry.version} of pipeline {entry.pipeline!r} is the current one, which others read: switch to "
            f"another one before you retire it: penstock pipelines switch {entry.pipeline} VERSION"
        )


def check_not_retired(entry: Version) -> None:
    if entry.state == "retiring":
        raise PipelineError(
            f"version {entry.version} of pipeline {entry.pipeline!r} is being retired. Finish that: penstock pipelines "
            f"retire {entry.pipeline} {entry.version}; or reprocess as another version: penstock run FILE --reprocess"
        )
    if entry.state == "retired":
        raise PipelineError(
            f"version {entry.version} of pipeline {entry.pipeline!r} was retired: its checkpoints are deleted. "
            "Reprocess as another version: penstock run FILE --reprocess"
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


def _required(values: Values, pipeline: str, version: str) -> Version:
    for entry in _entries(values):
        if (entry.pipeline, entry.version) == (pipeline, version):
            return entry
    raise ConfigError(f"pipeline {pipeline!r} no longer has a version {version!r}: see penstock pipelines versions")


def _entries(values: Values) -> list[Version]:
    found = []
    for key, text in values.items():
        if is_alias(key):
            continue
        try:
            found.append(msgspec.json.decode(text, type=Version))
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"the entry of {key!r} in topic {ALIASES_TOPIC!r} cannot be read ({error}): it was not written by "
                "this version of Penstock, or is damaged. Delete it with a tombstone: a record of this key and no value"
            ) from error
    return found


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def version_to_run(stream: Stream, pipeline: str, settings: RunSettings) -> str | None:
    """The version in the settings, else the current one; None is the first.

    For reprocessing, the default is the version that has not caught up yet, else a new one. Raises ConfigError for a
    version that does not exist, and PipelineError for one that was retired: it would start over, and write its results
    a second time.
    """
    versions = Register(stream).versions(pipeline)
    if settings.reprocess:
        if settings.version is not None:
            return check_version(settings.version)
        return unfinished(versions) or next_version(each.version for each in versions)
    wanted = settings.version or current_of(versions)
    entry = next((each for each in versions if each.version == wanted), None)
    if entry is not None:
        check_not_retired(entry)
    elif versions or wanted != FIRST:
        there = ", ".join(each.version for each in versions if each.state not in GONE) or FIRST
        raise ConfigError(
            f"pipeline {pipeline!r} has no version {wanted!r}; it has {there}. Create it with: penstock run FILE "
            f"--reprocess {wanted}"
        )
    return None if wanted == FIRST else wanted
