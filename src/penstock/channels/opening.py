"""`open_channel`: from a URL to a channel."""

from __future__ import annotations

from penstock.abc import Channel
from penstock.streams.backend_url import Setting
from penstock.streams.schemes import CHANNELS, opener
from penstock.streams.url import without_password


def open_channel(url: str, **options: Setting) -> Channel:
    """Open the channel at a URL: `udp://239.1.1.1:5000` listens to, or sends to, a multicast group.

    `options` are the settings of its scheme, which may also stand in the URL. UrlError names the installed schemes;
    ConfigError names an option that the channel does not have.
    """
    channel: Channel = opener(CHANNELS, without_password(url), "a channel")(url, options)
    return channel
