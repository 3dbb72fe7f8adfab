"""Amazon SQS, by `sqs://REGION/QUEUE` URLs: standard queues, and FIFO queues, whose names end with `.fifo`.

In come records, which become messages of text with attributes; out go deliveries, which are settled within the
visibility timeout or come again.
"""

from __future__ import annotations

from penstock.queues.sqs.queue import SqsQueue, SqsSettings

__all__ = ["SqsQueue", "SqsSettings"]
