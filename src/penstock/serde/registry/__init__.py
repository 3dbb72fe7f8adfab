"""Schema registries that speak Confluent's HTTP API: schemas go in, numbers come out, and the other way round.

A serde with a registry puts the number of its schema before every value, so that whoever reads it later can ask what
it was written with.
"""

from __future__ import annotations
