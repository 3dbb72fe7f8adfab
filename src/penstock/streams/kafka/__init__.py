"""Kafka's protocol, through librdkafka.

`stream` has the backend and its topics. `producing` sends, `reading` reads without a group, `groups` reads as a member
of one, and `administration` manages topics, groups and brokers.

All of them use `settings` (librdkafka's configuration), `failures` (its errors as ours) and `header_names` (repairs
names that the client cannot decode). `plain` sends the few requests that librdkafka does not offer, with the `security`
of the brokers.
"""
