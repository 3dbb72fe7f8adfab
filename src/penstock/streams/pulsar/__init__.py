"""Apache Pulsar: `pulsar://` and `pulsar+ssl://` URLs.

A topic of Pulsar is a topic here, partitioned or not; a pointer is a message id as one number. Comes in a URL, goes out
`abc.Stream`. `client` wraps Pulsar's own client, which carries the records; `web` is its REST API, which administers
topics and says what they hold; `messages` turns records into messages and back.
"""
