"""StatsD: metrics that programs send to `statsd://HOST:8125`, by UDP or TCP, as records; and records out as metrics.

Input: a URL. Output: a channel. `lines` is the format, `aggregates` what StatsD makes of it every few seconds,
`receiving` the listening end, `sending` the other one. Best effort: nobody is told what arrived.
"""

from __future__ import annotations

from penstock.channels.statsd.channel import StatsdChannel as StatsdChannel
from penstock.channels.statsd.channel import open_statsd as open_statsd
from penstock.channels.statsd.settings import StatsdSettings as StatsdSettings
