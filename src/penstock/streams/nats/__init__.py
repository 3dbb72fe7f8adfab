"""NATS JetStream: `nats://` and `tls://` URLs.

A partition is a stream of JetStream with one subject, a pointer its sequence number. Comes in a URL, goes out
`abc.Stream`. `client` runs nats-py in an event loop of its own, `messages` turns records into messages and back.
"""
