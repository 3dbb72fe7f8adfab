"""Kafka's protocol, through librdkafka: sending with receipts, reading again, and looking after topics and groups.

`connection` is what users hold; it makes a `sending.Sender` when something is sent and a `reading.Reader` whenever
something is read. `topics` and `groups` administer. `plain` speaks the few requests that librdkafka does not offer.
"""
