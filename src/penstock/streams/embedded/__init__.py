"""The embedded log's broker, from the client's side: find the one that serves a data folder, or start it.

`finding` checks the address in a folder, `starting` starts its broker once for all clients, and `opening` has the
`EmbeddedBrokerKeeper`, which keeps it from stopping as idle, and restarts it when it dies.
"""
