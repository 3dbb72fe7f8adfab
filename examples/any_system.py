"""Count page views on any stream system: nothing changes but the URL.

    python examples/any_system.py [URL]

    log:./data                    the embedded log (what runs without a URL)
    kafka://localhost:9092        Apache Kafka, and whatever speaks its protocol
    redis://localhost:6379/0      Redis Streams
    nats://localhost:4222         NATS JetStream
    rabbitmq-stream://localhost   RabbitMQ streams
    pulsar://localhost            Apache Pulsar
    kinesis://eu-west-1           Amazon Kinesis
    postgresql://localhost/db     a table of PostgreSQL
    sqlite:./events.db            a table of SQLite
    file:./events                 files of JSON lines

The progress of the group is kept in a SQLite file beside this program's data, so that any system will do.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass

import penstock as ps

PAGES = ("home", "cart", "help", "jobs", "news")
VIEWS = 500


@dataclass
class View:
    page: str
    run: int


views = ps.Topic("page-views", View, key=lambda view: view.page, partitions=1)  # made by the first send


def main(url: str) -> None:
    run = random.SystemRandom().randrange(1 << 32)
    with ps.connect(url) as stream:
        for number in range(VIEWS):
            stream.send(views, View(PAGES[number % len(PAGES)], run))
        stream.flush(timeout_s=60)

    counted: Counter[str] = Counter()
    app = ps.App(url, group="counting", checkpoints="sqlite:./any-system.db")

    @app.handle(views, order="key", retry=ps.Retry(3), dead_letters="sqlite:./any-system-letters.db")
    def count(view: View) -> None:
        if view.run == run:
            counted[view.page] += 1

    app.run(end="latest")
    for page, count_of_page in sorted(counted.items()):
        print(f"{page}  {'█' * (count_of_page // 5)} {count_of_page}")
    print(f"{counted.total()} of {VIEWS} views of this run were counted")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "log:./data")
