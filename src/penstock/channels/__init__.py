"""Channels: direct transport that keeps nothing, by URL. A gateway makes what they carry durable.

Input: a URL. Output: a channel that listens or sends. What channels share: `receive_buffer` for what arrived,
`answers` for senders that wait, `frames` for records as bytes. `memory` is a channel in this process, for tests.
"""

from __future__ import annotations

from penstock.channels.opening import open_channel

__all__ = ["open_channel"]
