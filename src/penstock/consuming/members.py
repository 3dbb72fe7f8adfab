"""Names of members of groups."""

from __future__ import annotations

import os
import socket
import uuid


def member_name() -> str:
    """A name that no other member has, and that tells where it is."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
