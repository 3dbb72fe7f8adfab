"""Redis Streams: `redis://` and `rediss://` URLs.

A topic is a key that holds a stream, a partition of more than one a key each, a pointer the id of an entry as one
number. Comes in a URL, goes out `abc.Stream`. `client` talks to the server, `entries` turns records into entries and
back, `scripts` is what must happen there in one step.
"""
