"""What can be read in a partition at this moment, asked by a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import BrokerUnavailableError, ConnectionClosedError
from penstock.spark.source.kept_open import KeptOpen
from penstock.spark.source.origin import Origin
from penstock.spark.source.topic_view import TopicView, open_topic

_MOST_TOPICS: Final = 16
_views: Final = KeptOpen[TopicView](_MOST_TOPICS)


@dataclass(frozen=True, slots=True)
class Extent:
    topic_id: str | None
    """Of the topic that has this name now."""
    start: int
    end: int
    """Behind the last record that is safe and decided."""


def extent_now(origin: Origin, partition: int) -> Extent:
    """The connection is kept for the next batch. If it has become useless since the last one, another is made."""
    here = _as_found_here(origin)
    try:
        return _asked(here, partition)
    except (BrokerUnavailableError, ConnectionClosedError):
        _views.drop(here.key)
        return _asked(here, partition)


def _asked(origin: Origin, partition: int) -> Extent:
    view = _views.get(origin.key, lambda: open_topic(origin.url, origin.topic, origin.client))
    topic_id = view.describe().topic_id
    return Extent(topic_id, view.starts([partition])[partition], view.ends([partition])[partition])


def _as_found_here(origin: Origin) -> Origin:
    """A log on this host is named by its folder: then connecting finds its broker, or starts it, at whatever port."""
    if origin.folder is None or not origin.folder.is_here():
        return origin
    return Origin(f"log:{origin.folder.path}", origin.topic, origin.client, origin.folder)
