"""UDP, to one address or to a multicast group: `udp://HOST:PORT`, `udp://239.1.2.3:5000?interface=192.168.1.7`.

Input: a URL. Output: a channel. Each sender numbers its packets and keeps the latest ones; a receiver puts them in
order, asks the sender for those that are missing, and counts the records that cannot be recovered. `packets` is the
format, `ordering` what a receiver knows about one sender, `sending` and `receiving` the two ends with their sockets.
With `raw=true`, each datagram is a record.
"""

from __future__ import annotations

from penstock.channels.udp.channel import UdpChannel as UdpChannel
from penstock.channels.udp.channel import open_udp as open_udp
from penstock.channels.udp.settings import UdpSettings as UdpSettings
