"""`open_channel`: from a URL to a channel."""

from __future__ import annotations

from typing import Any

from penstock.abc import Channel
from penstock.streams.schemes import CHANNELS, opener
from penstock.streams.url import without_password


def open_channel(url: str, **options: Any) -> Channel:
    """Open the channel at a URL: `udp://239.1.1.1:5000` listens to, or sends to, a multicast group.

    Raises UrlError that names the installed schemes, and ConfigError for an unknown option of the channel.
    """
    channel: Channel = opener(CHANNELS, without_password(url), "a channel")(url, options)
    return channel
