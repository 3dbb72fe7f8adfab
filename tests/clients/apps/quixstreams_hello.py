"""The hello world of Quix Streams, as its documentation has it, with addresses from the environment: words are counted.

It keeps its counts in a state store, whose changes go to a changelog topic that it creates itself.
"""

import os

from quixstreams import Application, State

app = Application(
    broker_address=os.environ["BOOTSTRAP"],
    consumer_group=os.environ["GROUP"],
    auto_offset_reset="earliest",
    processing_guarantee=os.environ["GUARANTEE"],
    commit_interval=0.2,
    state_dir=os.environ["STATE"],
)
messages = app.topic(os.environ["SOURCE"], value_deserializer="json")
counts = app.topic(os.environ["SINK"], value_serializer="json")


def count(message: dict[str, str], state: State) -> dict[str, object]:
    total = state.get("total", default=0) + 1
    state.set("total", total)
    return {"text": message["text"].upper(), "total": total}


stream = app.dataframe(messages).apply(count, stateful=True).to_topic(counts)

if __name__ == "__main__":
    app.run()
