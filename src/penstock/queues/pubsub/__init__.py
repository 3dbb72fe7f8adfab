"""Google Cloud Pub/Sub as a queue, by `pubsub://PROJECT/SUBSCRIPTION` URLs.

In come records, which are published to a topic as messages with attributes; out go deliveries of a subscription, which
are acknowledged within the ack deadline or come again.
"""

from __future__ import annotations

from penstock.queues.pubsub.queue import PubsubQueue, open_pubsub
from penstock.queues.pubsub.settings import PubsubSettings

__all__ = ["PubsubQueue", "PubsubSettings", "open_pubsub"]
