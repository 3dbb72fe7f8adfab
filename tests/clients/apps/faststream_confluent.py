"""The hello world of FastStream on confluent-kafka, as documented, with addresses from the environment."""

from __future__ import annotations

import os

from faststream import FastStream
from faststream.confluent import KafkaBroker

broker = KafkaBroker(os.environ["BOOTSTRAP"])
app = FastStream(broker)


@broker.subscriber(os.environ["SOURCE"], group_id=os.environ["GROUP"], auto_offset_reset="earliest")
@broker.publisher(os.environ["SINK"])
async def handle_msg(user: str, user_id: int) -> str:
    return f"User: {user_id} - {user} registered"
