"""Consumer groups: their members, assignments and committed offsets.

Requests come in from `handlers.groups`, independent of wire versions, and time comes in through the clock. Responses go
out, and records go to `__consumer_offsets`, in Kafka's formats. `coordinator` is the entry point. `members` takes the
requests of members, `rebalances` moves groups through their states, `commits` stores and deletes offsets, and `journal`
applies changes in the order of the log.
"""
