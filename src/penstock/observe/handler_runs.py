"""The handlers of a running app, as the runs that `penstock.abc.Lineage` is told about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.abc import Dataset, Lineage, LineageRun
from penstock.consuming.declaration import Declared
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.pattern_consumer import PatternConsumer
from penstock.consuming.queue.queue_consumer import QueueConsumer
from penstock.streams.datasets import topic_dataset, url_dataset

AnyConsumer = HandlerConsumer | QueueConsumer | PatternConsumer[Any]


class HandlerRuns:
    """A run for each handler of an app, whatever the number of its topics. It ends with the last of its consumers."""

    def __init__(
        self, lineage: Lineage, url: str, declared: Sequence[Declared], consumers: Sequence[AnyConsumer], *, ends: bool
    ) -> None:
        """`consumers` are those of the handlers in `declared`, in the same order, before they start."""
        self._url = url
        self._declared: dict[AnyConsumer, Declared] = dict(zip(consumers, declared, strict=True))
        self._running: dict[str, list[AnyConsumer]] = {}
        for consumer, each in self._declared.items():
            self._running.setdefault(_job(each), []).append(consumer)
        self._all = {job: list(own) for job, own in self._running.items()}
        self._runs: dict[str, LineageRun] = {}
        for job, own in self._all.items():
            handlers = [self._declared[consumer] for consumer in own]
            outputs = [found for each in handlers if (found := self._output(each)) is not None]
            is_bounded = ends or all(each.options.end is not None for each in handlers)
            self._runs[job] = lineage.start(job, "HANDLER", self._inputs(job), outputs, ends=is_bounded)

    def look(self) -> None:
        """Report topics that match patterns and were found since the last call."""
        for job, own in self._all.items():
            if any(isinstance(consumer, PatternConsumer) for consumer in own):
                self._runs[job].reads(self._inputs(job))

    def ended(self, consumer: AnyConsumer, error: BaseException | None = None, *, stopped: bool) -> None:
        """A consumer has ended: with an error, because it was stopped, or because it has reached its end."""
        job = _job(self._declared[consumer])
        self._running[job].remove(consumer)
        if error is not None or not self._running[job]:
            self.look()
            self._runs[job].end(error, stopped=stopped)

    def close(self) -> None:
        """Report the handlers that have not ended, as stopped: the app does not wait for them any longer."""
        for run in self._runs.values():
            run.end(stopped=True)

    def _inputs(self, job: str) -> list[Dataset]:
        found: list[Dataset] = []
        for consumer in self._all[job]:
            declared = self._declared[consumer]
            if declared.queue is not None:
                if isinstance(declared.queue, str):
                    found.append(url_dataset(declared.queue))
            elif isinstance(consumer, PatternConsumer):
                found += [topic_dataset(self._url, each.handler.topic.name) for each in consumer.consumers]
            else:
                found.append(topic_dataset(self._url, declared.handler.topic.name))
        return found

    def _output(self, declared: Declared) -> Dataset | None:
        """Where the results go; None if that is unknown: unlike a URL, an object does not tell its system."""
        if declared.destination is not None:
            return url_dataset(declared.destination) if isinstance(declared.destination, str) else None
        return None if declared.handler.to is None else topic_dataset(self._url, declared.handler.to.name)


def _job(declared: Declared) -> str:
    return f"{declared.group}.{declared.handler.name}"
