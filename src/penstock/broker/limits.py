"""What a connection may take from the broker. Every limit has a name and a default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    max_request_bytes: int = 100 * 1024 * 1024
    """`socket.request.max.bytes`: the longest request. A longer one closes its connection before it takes memory."""

    max_connections: int = 2_000
    """`max.connections`: connections at one time. One more is closed at once. Each needs a file handle."""

    idle_ms: int = 600_000
    """`connections.max.idle.ms`: a connection that completes no request for so long is closed."""

    queued_requests: int = 100
    """`queued.max.requests`: how many answers one connection may wait for. Then nothing more is read from it."""

    unsent_bytes: int = 8 * 1024 * 1024
    """`socket.send.buffer.max.bytes`: how much is kept for a client that does not read its answers. Then nothing more
    is read from it until it has caught up."""

    fetch_bytes: int = 55 * 1024 * 1024
    """`fetch.max.bytes`: the most records that one Fetch answer holds, whatever the client asks for."""

    fetch_sessions: int = 1_000
    """`max.incremental.fetch.session.cache.slots`: fetch sessions that are remembered; the one used least recently
    makes room for a new one, and its client starts over."""

    open_files: int = 512
    """`log.open.files.max`: segment files that are kept open; the one used least recently is closed first."""
