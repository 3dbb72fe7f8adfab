"""Schema registries with Confluent's HTTP API, which map schemas to ids and ids to schemas.

A serde with a registry writes the id of its schema before every value, so that readers can look up the writer's schema.
"""

from __future__ import annotations
