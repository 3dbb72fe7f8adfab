"""Kafka's protocol, through librdkafka: sending with receipts, reading again, and looking after topics and groups.

`connection` is what users hold; it makes a `sending.Sender` when something is sent and a `reading.Reader` whenever
something is read. `topics` and `groups` administer. `plain` speaks the few requests that librdkafka does not offer,
with the `security` that the brokers want, and `reaching` finds out whether they let us in. `header_names` mends what
the client cannot decode.

`stream` is what the other rooms build on. Its feeds, `feed` without and `group_feed` with a group, are a consumer and
an `intake`, which makes a `batch` of what comes from each partition; what they have in common is in `polling`, and
`rereading` reads at any pointer through them. `transactions` has the producer whose records count together.
"""
