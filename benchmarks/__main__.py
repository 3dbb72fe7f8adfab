"""`python -m benchmarks`: run all, or those that are named, and write the results down."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable

from benchmarks import (
    against_kafka,
    arrow,
    cdc,
    cluster,
    console,
    console_pages,
    consumers,
    deadlines,
    group_sizes,
    kills,
    many_topics,
    recovery,
    spark_cluster_sink,
    spark_guards,
    spark_json,
    spark_latency,
    spark_restart,
    spark_sink,
    spark_source,
    spark_start,
    spark_windows,
    spool,
    sql,
    systems_amqp,
    systems_amqp1,
    systems_files,
    systems_http,
    systems_kafka,
    systems_kinesis,
    systems_nats,
    systems_pubsub,
    systems_pulsar,
    systems_rabbitmq_stream,
    systems_redis,
    systems_sql,
    systems_sqs,
    systems_stomp,
    systems_udp,
    systems_zmq_nng,
    tables,
)
from benchmarks.report import Report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="which, such as kafka or consumers; all where none is named")
    parser.add_argument("--rounds", type=int, default=3, help="how often the servers take turns (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="how many records, as a part of the usual (1.0)")
    options = parser.parse_args()
    report = Report()
    broken: list[str] = []

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    suites: dict[str, Callable[[], None]] = {
        "topics": lambda: many_topics.run(report, say),
        "arrow": lambda: arrow.run(report, say),
        "recovery": lambda: recovery.run(report, say),
        "spool": lambda: spool.run(report, say, rounds=options.rounds, scale=options.scale),
        "deadlines": lambda: deadlines.run(report, say, scale=options.scale),
        "verdicts": lambda: deadlines.run_verdicts(report, say, scale=options.scale),
        "consumers": lambda: consumers.run(report, say, rounds=options.rounds, scale=options.scale),
        "groups": lambda: group_sizes.run(
            report, say, scale=options.scale * (1.0 if options.names else group_sizes.PLAIN_SCALE)
        ),
        **{
            name: functools.partial(group_sizes.run, report, say, scale=options.scale, ways=[name])
            for name in group_sizes.WAYS
        },
        "console": lambda: console.run(report, say, rounds=options.rounds, scale=options.scale),
        "console-pages": lambda: console_pages.run(report, say, rounds=options.rounds),
        "spark-start": lambda: spark_start.run(report, say, rounds=options.rounds),
        "spark-restart": lambda: spark_restart.run(report, say, rounds=options.rounds),
        "spark-source": lambda: spark_source.run(report, say, rounds=options.rounds, scale=options.scale),
        "spark-guards": lambda: spark_guards.run(report, say, rounds=options.rounds, scale=options.scale),
        "spark-json": lambda: spark_json.run(report, say, rounds=options.rounds, scale=options.scale),
        "spark-sink": lambda: spark_sink.run(report, say, rounds=options.rounds, scale=options.scale),
        "spark-cluster-sink": lambda: spark_cluster_sink.run(report, say, rounds=options.rounds, scale=options.scale),
        "spark-windows": lambda: spark_windows.run(report, say, rounds=options.rounds, scale=options.scale),
        "spark-latency": lambda: spark_latency.run(report, say, rounds=options.rounds, scale=options.scale),
        "sql": lambda: sql.run(report, say, rounds=options.rounds, scale=options.scale),
        "cluster": lambda: cluster.run(report, say, rounds=options.rounds),
        "systems-amqp": lambda: systems_amqp.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-amqp1": lambda: systems_amqp1.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-stomp": lambda: systems_stomp.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-udp": lambda: systems_udp.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-http": lambda: systems_http.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-pubsub": lambda: systems_pubsub.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-zmq-nng": lambda: systems_zmq_nng.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-nats": lambda: systems_nats.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-rabbitmq-stream": lambda: systems_rabbitmq_stream.run(
            report, say, rounds=options.rounds, scale=options.scale
        ),
        "systems-pulsar": lambda: systems_pulsar.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-redis": lambda: systems_redis.run(report, say, rounds=options.rounds, scale=options.scale),
        "cdc": lambda: cdc.run(report, say, rounds=options.rounds, scale=options.scale),
        "tables": lambda: tables.run(report, say, rounds=options.rounds, scale=options.scale),
        "kills": lambda: broken.extend(kills.run(report, say, scale=options.scale)),
        "systems-sql": lambda: systems_sql.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-files": lambda: systems_files.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-kafka": lambda: systems_kafka.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-kinesis": lambda: systems_kinesis.run(report, say, rounds=options.rounds, scale=options.scale),
        "systems-sqs": lambda: systems_sqs.run(report, say, rounds=options.rounds, scale=options.scale),
        "kafka": lambda: against_kafka.run(report, say, rounds=options.rounds, scale=options.scale),
    }
    unknown = set(options.names) - suites.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(suites)}")
    for name, suite in suites.items():
        if name in options.names or (not options.names and name not in group_sizes.WAYS):
            say(f"== {name}")
            suite()
    print(report.text())
    say(f"written to {report.save('latest' if not options.names else '-'.join(options.names))}")
    if broken:
        sys.exit(f"{len(broken)} promises were broken: see the notes of the report")


if __name__ == "__main__":
    main()
