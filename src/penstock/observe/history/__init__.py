"""The past of a stream: snapshots in, time series out, stored in a SQLite file of bounded size."""
