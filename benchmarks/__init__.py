"""Benchmarks: Penstock beside Apache Kafka in one run, on the same disk, with the same client. `make bench` runs all.

Each figure is the median of several rounds in which the servers take turns, so that a busy moment of the machine hits
both. The ratio is what counts. No time passes or fails anything; a bar that is missed is printed as missed. Only
`kills`, which counts broken promises rather than seconds, ends with an error when there is one.
"""
