"""How long a segment is written to."""

from __future__ import annotations

import random

from penstock.log.config import TopicConfig


def age_limit_ms(config: TopicConfig) -> int:
    """How much later than the first record of a segment the last may be, a little less by chance if the topic says so.

    A compacted topic must be able to obey `max.compaction.lag.ms`, and only sealed segments are compacted.
    """
    limit_ms = config.segment_ms
    if config.compacts:
        limit_ms = min(limit_ms, config.max_compaction_lag_ms)
    return limit_ms - random.randint(0, min(config.segment_jitter_ms, limit_ms))
