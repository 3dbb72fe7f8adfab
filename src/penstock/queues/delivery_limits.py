"""RabbitMQ's delivery limit: quorum queues of version 4 have one of 20 unless a queue or a policy has another.

A message that came back more often, also because its consumers died, is moved to the dead letters, or dropped where
there are none.
"""

from __future__ import annotations

import logging
import re
from typing import Final

logger = logging.getLogger(__name__)

TYPE: Final = "x-queue-type"
LIMIT: Final = "x-delivery-limit"
UNLIMITED: Final = -1
"""What RabbitMQ 4 takes for no limit. RabbitMQ 3 refuses it, and needs none."""
_LIMITED_SINCE: Final = 4


def has_default_limit(version: str) -> bool:
    """Whether RabbitMQ of this version limits quorum queues that do not say so."""
    major = version.partition(".")[0]
    return major.isdigit() and int(major) >= _LIMITED_SINCE


def warn_of_default_limit(shown: str, vhost: str, queue: str, version: str, hint: str = "") -> None:
    """Say that a queue that exists has no limit of its own, and what to do. Only RabbitMQ's tools see policies."""
    logger.warning(
        "the queue %r at %s was declared without %s: unless a policy says otherwise, RabbitMQ %s moves a message that "
        'came back more than 20 times to the dead letters, or drops it. To keep such messages, add "delivery-limit": '
        "%d to the policy of the queue; if it has none, run rabbitmqctl set_policy -p '%s' --apply-to quorum_queues "
        "'unlimited-%s' '^%s$' '{\"delivery-limit\": %d}'%s",
        queue,
        shown,
        LIMIT,
        version,
        UNLIMITED,
        vhost,
        queue,
        re.escape(queue),
        UNLIMITED,
        hint,
    )
