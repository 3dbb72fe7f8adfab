"""Quix Streams on the job of the consumer benchmarks. It runs in the environment of Quix Streams, by its path.

Its best reasonable settings: at least once, bytes taken as they are, `update` with a function that does nothing,
commits every 5 s as by default, and librdkafka set to read ahead as for everybody else.
"""

from __future__ import annotations

import json
import sys

from quixstreams import Application
from stopwatch import Stopwatch  # type: ignore[import-not-found]  # beside this file, where Python looks first


def main(bootstrap: str, topic: str, options: str) -> None:
    given = json.loads(options)
    app = Application(
        broker_address=bootstrap,
        consumer_group=given["group"],
        auto_offset_reset="earliest",
        processing_guarantee="at-least-once",
        consumer_extra_config=given["librdkafka"],
        state_dir=given["folder"],
        loglevel="WARNING",
    )
    watch = Stopwatch(given["count"], app.stop)
    source = app.topic(topic, value_deserializer="bytes", key_deserializer="bytes")
    app.dataframe(source).update(watch.tick)
    app.run()
    print(json.dumps({"records_per_s": watch.rate}))


if __name__ == "__main__":
    main(*sys.argv[1:])
