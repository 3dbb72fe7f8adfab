"""Names that no other test uses."""

from __future__ import annotations

import uuid


def fresh(what: str = "topic") -> str:
    return f"{what}-{uuid.uuid4().hex[:12]}"
