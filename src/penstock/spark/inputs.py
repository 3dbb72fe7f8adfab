"""`PipelineInputs`: the topics and queues that a pipeline reads, their decoders, and where undecodable records go."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from penstock.dead_letters import open_dead_letters
from penstock.errors import ConfigError, OffsetOutOfRangeError, TopicExistsError, UnknownTopicError
from penstock.model import DeadLetterFilter, Record
from penstock.serde import Topic
from penstock.spark.errors.batch_rows import RowLetters, runs_of
from penstock.spark.run.plans import sources, topics_read
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.sink.refused_rows import RefusedRows
from penstock.spark.sink.topic import TopicTarget
from penstock.spark.sink.topic_delivery import topics_for
from penstock.spark.source.queue_spool import QueueSpool
from penstock.spark.values.decoding import Decoder, TopicDecoders, letters_of
from penstock.spark.values.undecodable import Letters, stream_of
from penstock.spark.versions import FIRST, current_topic
from penstock.streams import connect
from penstock.streams.topic_patterns import TopicChoice, TopicPattern, described
from penstock.streams.url import without_password
from penstock.streams.url_settings import client_with

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline

SPOOLS: Final = ".queues"
"""The folder, beside the checkpoints, of the logs that queues are drained into."""
_log = logging.getLogger("penstock.spark")

LettersChoice = str | bool | None
"""The location of dead letters; True is the topic `NAME.dlq`, None and False are nowhere."""


class PipelineInputs:
    """What one pipeline reads."""

    def __init__(self, pipeline: Pipeline, url: str, checkpoints: StateFolder) -> None:
        """`url` is that of the stream, with credentials; `checkpoints` is the folder of all pipelines."""
        self._pipeline = pipeline
        self._url = url
        self._checkpoints = checkpoints
        self._dead_letters: dict[str, str] = {}
        self._letters_by_source: dict[str, Letters] = {}
        self._row_letters: dict[str, Letters] = {}
        """For rows that fail in guarded functions or expectations, by the topic that is read. Unlike those of records
        that cannot be decoded, topics without a type have some."""
        self._outputs: dict[str, TopicTarget] = {}
        self._patterns: list[tuple[TopicPattern, LettersChoice]] = []
        """The patterns that are read, with their dead letters."""
        self.spools: dict[str, QueueSpool] = {}
        """The spools of the queues that are read, by URL."""

    def topic(
        self, topic: Topic[Any] | str, dead_letters: LettersChoice, *, is_table: bool = False
    ) -> tuple[Decoder | None, str]:
        """The decoder of a topic, None if it has no type, and the name of the topic to read."""
        if not isinstance(topic, Topic):
            _refuse_letters_of([topic], dead_letters)
            name = self._topic_to_read(topic)
            self._add_row_letters(name, dead_letters)
            return None, name
        decoder = self._decoder(topic, dead_letters)
        name = self._topic_to_read(topic)
        if decoder.letters is not None:
            if not is_table:
                self._row_letters[name] = decoder.letters
            self._dead_letters[topic.name] = decoder.letters.spec
            if not is_table:
                self._letters_by_source[f"topic {name}"] = decoder.letters
        return decoder, name

    def topics(
        self, topics: list[str | Topic[Any]] | TopicPattern, dead_letters: LettersChoice
    ) -> tuple[TopicDecoders | None, TopicChoice]:
        """The same for several topics."""
        if isinstance(topics, TopicPattern):
            self._check_own_outputs(topics, self._outputs)
            self._patterns.append((topics, dead_letters))
            if topics.type is bytes and topics.serde is None:
                _refuse_letters_of(topics, dead_letters)
                return None, topics
            return TopicDecoders(self._decoder(topics.topic("any"), dead_letters), {}, topics), topics
        names = {str(topic): self._topic_to_read(topic) for topic in topics}
        typed = [topic for topic in topics if isinstance(topic, Topic)]
        if not typed:
            _refuse_letters_of(topics, dead_letters)
            for name in names.values():
                self._add_row_letters(name, dead_letters)
            return None, list(names.values())
        if len(typed) != len(topics):
            raise ConfigError(
                f"pipeline {self._pipeline.name!r}: of {described(topics)}, some are Topics and some are names: the "
                "rows of a frame have the same columns, so give only Topics, or only names"
            )
        decoders = {names[topic.name]: self._decoder(topic, dead_letters) for topic in typed}
        first, *others = decoders.values()
        for other in others:
            if other.schema != first.schema:
                raise ConfigError(
                    f"pipeline {self._pipeline.name!r}: topics {first.topic.name!r} and {other.topic.name!r} have "
                    "other columns: read each by itself, and unite them with unionByName"
                )
        self._row_letters |= {name: each.letters for name, each in decoders.items() if each.letters is not None}
        self._dead_letters |= {each.topic.name: each.dead_letters for each in decoders.values() if each.dead_letters}
        return TopicDecoders(first, decoders), list(names.values())

    def queue(
        self, url: str, options: Mapping[str, Any], type: Any, dead_letters: LettersChoice
    ) -> tuple[Decoder | None, QueueSpool]:
        """The decoder of a queue, None without a type, and its spool."""
        spool = self._spool(url, options)
        if type is None:
            _refuse_letters_of([spool.topic], dead_letters)
            self._add_row_letters(spool.topic, dead_letters)
            return None, spool
        decoder = self._decoder(Topic(spool.topic, type), dead_letters, has_offsets=True)
        if decoder.letters is not None:
            self._dead_letters[spool.topic] = decoder.letters.spec
            self._letters_by_source[f"topic {spool.topic}"] = self._row_letters[spool.topic] = decoder.letters
        return decoder, spool

    def add_outputs(self, outputs: Mapping[str, TopicTarget]) -> None:
        """Note the topics that a query writes, by their names in the program.

        Raises ConfigError if the pipeline reads one of them by a pattern.
        """
        for pattern, _ in self._patterns:
            self._check_own_outputs(pattern, [*outputs, *(each.name for each in outputs.values())])
        self._outputs |= outputs

    def refused_rows(self, frame: DataFrame) -> RefusedRows | None:
        """The dead letters of the first topic that the frame reads and that has some."""
        for source in sources(frame):
            if source in self._letters_by_source:
                letters = self._letters_by_source[source]
                return RefusedRows(letters, self._pipeline.name, self._pipeline.version or "")
        return None

    def row_letters(self, frame: DataFrame) -> RowLetters | None:
        """The dead letters for rows of the frame that fail by themselves; None if none of its topics has some."""
        topics = [each.removeprefix("topic ") for each in topics_read(frame)]
        default = next((self._row_letters[topic] for topic in topics if topic in self._row_letters), None)
        if default is None and any(dead_letters for _, dead_letters in self._patterns):
            default = self._letters(f"{self._pipeline.name}.dlq")
        if default is None:
            return None
        version = self._pipeline.version or ""
        return RowLetters(default, self._letters_of_topic, self._pipeline.name, version, self._records)

    def _letters_of_topic(self, topic: str) -> Letters | None:
        if topic in self._row_letters:
            return self._row_letters[topic]
        choice = next((choice for pattern, choice in self._patterns if choice and pattern.matches(topic)), None)
        location = letters_of(topic, choice)
        return None if location is None else self._letters(location)

    def _add_row_letters(self, topic: str, dead_letters: LettersChoice) -> None:
        location = letters_of(topic, dead_letters)
        if location is not None:
            self._row_letters[topic] = self._letters(location)

    def _letters(self, location: str) -> Letters:
        return Letters(stream_of(self._url), location, client_with(self._url, self._pipeline.client))

    def _records(self, topic: str, partition: int, pointers: Sequence[int]) -> Iterator[Record]:
        """The records at these pointers, without those that have expired or were compacted away."""
        with contextlib.ExitStack() as closing:
            spool = next((each for each in self.spools.values() if each.topic == topic), None)
            connection = self._pipeline.connection
            if spool is not None:
                connection = closing.enter_context(connect(spool.log_url))
            for run in runs_of(pointers):
                wanted = set(run)
                with contextlib.suppress(OffsetOutOfRangeError, UnknownTopicError):  # expired, or deleted
                    span = run[-1] - run[0] + 1
                    for record in connection.read(topic, {partition: run[0]}, partitions=[partition], limit=span):
                        if record.offset in wanted:
                            wanted.discard(record.offset)
                            yield record
                        if not wanted or record.offset >= run[-1]:
                            break

    def undecodable(self) -> dict[str, int]:
        """For each topic, the number of dead letters of records that the pipeline could not decode."""
        connection = self._pipeline.connection
        locations = dict(self._dead_letters)
        for pattern, dead_letters in self._patterns:
            for name in pattern.find(connection) if dead_letters else ():
                location = letters_of(name, dead_letters)
                assert location is not None
                locations[name] = location
        counts = {}
        for topic, location in locations.items():
            with contextlib.closing(open_dead_letters(location, connection)) as opened:
                counts[topic] = opened.count(DeadLetterFilter(group=self._pipeline.name, topic=topic))
        return counts

    def _topic_to_read(self, topic: Topic[Any] | str) -> str:
        """The topic to read under this name, created if it is missing and the pipeline declares or writes it.

        For a topic that this pipeline writes, that is the topic of its own version.
        """
        name = topic.name if isinstance(topic, Topic) else topic
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"pipeline {self._pipeline.name!r}: {topic!r} is not a topic: give a Topic or the name of one"
            )
        connection = self._pipeline.connection
        target = self._outputs.get(name)
        if target is None or target.name is None:
            current = current_topic(connection, name)
            if isinstance(topic, Topic) and current == name:
                self._create_if_missing(topic)
            return current
        topics_for(target, connection)
        return target.name

    def _create_if_missing(self, topic: Topic[Any]) -> None:
        connection = self._pipeline.connection
        if topic.name in connection.topics():
            return
        with contextlib.suppress(TopicExistsError):  # another process has just created it
            connection.create_topic(topic.name, topic.partitions)
            _log.warning("topic %s did not exist: pipeline %s created it", topic.name, self._pipeline.name)

    def _spool(self, url: str, options: Mapping[str, Any]) -> QueueSpool:
        if url not in self.spools:
            pipeline = self._pipeline
            folder = self._checkpoints.below(SPOOLS, pipeline.name).local
            if folder is None:
                raise ConfigError(
                    f"pipeline {pipeline.name!r}: a queue is read by way of a log on a local disk: set checkpoints= to "
                    "a local folder"
                )
            if pipeline.version is not None and pipeline.version != FIRST:
                raise ConfigError(
                    f"pipeline {pipeline.name!r} cannot run as version {pipeline.version}: a queue cannot be read again"
                )
            spool = QueueSpool(url, options, folder, self._processed_by_all)
            spool.create()
            self.spools[url] = spool
        return self.spools[url]

    def _processed_by_all(self, topic: str) -> int | None:
        """The pointer up to which all queries that read a spool have processed it; None if one is unknown."""
        progress = self._pipeline.progress()
        partition = f"{topic}/0"
        reached: list[int] = []
        for planned in self._pipeline.queries:
            if f"topic {topic}" in topics_read(planned.frame):
                ends = [source["end"] for source in progress[planned.name].sources] if planned.name in progress else []
                pointers = [end[partition] for end in ends if end is not None and partition in end]
                if None in ends or not pointers:
                    return None
                reached += pointers
        return min(reached, default=None)

    def _decoder(self, topic: Topic[Any], dead_letters: LettersChoice, *, has_offsets: bool | None = None) -> Decoder:
        pipeline = self._pipeline
        return Decoder(
            topic,
            url=self._url,
            dead_letters=dead_letters,
            group=pipeline.name,
            version=pipeline.version or "",
            client=pipeline.client,
            has_offsets=has_offsets,
        )

    def _check_own_outputs(self, pattern: TopicPattern, names: Iterable[str | None]) -> None:
        for name in names:
            if name is not None and pattern.matches(name):
                raise ConfigError(
                    f"pipeline {self._pipeline.name!r} writes topic {name!r} and reads {described(pattern)}: it would "
                    "read its own results for ever. Choose a pattern that does not match it, or another topic"
                )


def _refuse_letters_of(topics: Sequence[str | Topic[Any]] | TopicPattern, dead_letters: LettersChoice) -> None:
    if isinstance(dead_letters, str):
        typed = "TopicPattern(..., SomeType)" if isinstance(topics, TopicPattern) else "Topic(..., SomeType)"
        raise ConfigError(
            f"{described(topics)} is not decoded, so its dead letters in {without_password(dead_letters)!r} would stay "
            f"empty: give a type, {typed}, or omit dead_letters"
        )
