"""A real Apache Kafka of several brokers on this machine, and drills that break it on purpose.

`brokers.Cluster` starts, stops, kills and isolates brokers; each is a Java process that survives the command that
started it, and a file in the cluster's folder says which. `jars` fetches Kafka, `networks` gives each broker an address
and cuts it off, by `proxies` without namespaces, `status` asks the brokers how they are. `drills` are the subjects of
`penstock cluster drill`, which run on a `temporary` cluster if none is up.
"""
