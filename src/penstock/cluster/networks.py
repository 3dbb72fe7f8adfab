"""Where the brokers of a cluster listen, and how one of them is cut off.

On `loopback`, brokers share 127.0.0.1 and have ports of their own, and nobody can be cut off. With `proxies`, they do
the same behind proxies (`penstock.cluster.proxies`) that cut connections. In `namespaces`, each broker is a host of its
own: a network namespace with an address on a bridge, whose other end is this machine; creating one requires root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from penstock.errors import ClusterError

Network = Literal["loopback", "proxies", "namespaces"]
CutOff = Literal["peers", "clients", "all"]
CUT_OFFS: Final[tuple[CutOff, ...]] = ("peers", "clients", "all")

LOOPBACK: Final = "127.0.0.1"
FIRST_SUBNET: Final = 1
LAST_SUBNET: Final = 250
HOST_NUMBER: Final = 254
"""This machine's address on the bridge; clients have 128 and more, brokers less."""
COMMAND_TIMEOUT_S: Final = 20.0
SOCKET_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The IPv4 sockets of this machine, and its IPv6 sockets, which Java uses for IPv4, too."""


def has_namespaces() -> bool:
    """Whether this process may create network namespaces."""
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"ps-probe-{os.getpid()}"
    if _ip("netns", "add", probe, check=False) != 0:
        return False
    _ip("netns", "delete", probe)
    return True


def best_network() -> Network:
    """The most faithful network that this process may create and in which brokers can be cut off, else loopback."""
    if has_namespaces():
        return "namespaces"
    return "proxies" if tells_processes() else "loopback"


def tells_processes() -> bool:
    """Whether this system tells which process has a socket, as proxies need to know peers from clients."""
    return SOCKET_TABLES[0].exists()


def address(network: Network, subnet: int, number: int) -> str:
    """The host on which broker `number` listens."""
    return f"10.77.{subnet}.{number}" if network == "namespaces" else LOOPBACK


def namespace(subnet: int, number: int) -> str:
    """The name of a broker's network namespace."""
    return f"penstock-{subnet}-{number}"


def enter(network: Network, subnet: int, number: int) -> list[str]:
    """What a command begins with to run where broker `number` runs."""
    return ["ip", "netns", "exec", namespace(subnet, number)] if network == "namespaces" else []


def check_ports(ports: Sequence[int], host: str = LOOPBACK) -> None:
    """Raise ClusterError if one of the ports is taken."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ClusterError(
                    f"port {port} of {host} is taken ({error.strerror}): stop what listens there, or choose other "
                    f"ports with --port (the cluster needs {', '.join(map(str, ports))})"
                ) from error


def create_namespaces(numbers: Sequence[int]) -> int:
    """Create a bridge and a namespace for each broker. Returns the number of the subnet, 10.77.NUMBER.0/24."""
    for subnet in range(FIRST_SUBNET, LAST_SUBNET + 1):
        # The kernel refuses a second bridge of the same name, which decides between two clusters that start at once.
        if _ip("link", "add", _bridge(subnet), "type", "bridge", check=False) == 0:
            break
    else:
        raise ClusterError(f"all {LAST_SUBNET} subnets 10.77.x.0/24 are in use: take down clusters that nobody needs")
    try:
        _ip("address", "add", f"10.77.{subnet}.{HOST_NUMBER}/24", "dev", _bridge(subnet))
        _ip("link", "set", _bridge(subnet), "up")
        for number in numbers:
            name, link = namespace(subnet, number), _link(subnet, number)
            _ip("netns", "add", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", _bridge(subnet), "up")
            _ip("-n", name, "address", "add", f"{address('namespaces', subnet, number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "route", "add", "default", "via", f"10.77.{subnet}.{HOST_NUMBER}")
    except ClusterError:
        remove_namespaces(subnet, numbers)
        raise
    return subnet


def remove_namespaces(subnet: int, numbers: Sequence[int]) -> None:
    """Remove the namespaces of a cluster and its bridge; what is not there is skipped."""
    for number in numbers:
        # Explicitly: the kernel removes the links of a deleted namespace only some time later.
        _ip("link", "delete", _link(subnet, number), check=False)
        _ip("netns", "delete", namespace(subnet, number), check=False)
    _ip("link", "delete", _bridge(subnet), check=False)


def isolate(subnet: int, number: int, peers: Sequence[int], cut_off: CutOff) -> None:
    """Drop what a broker sends to its peers, to its clients, or to both, so that no connection works."""
    for route in _routes(subnet, peers, cut_off):
        _ip("-n", namespace(subnet, number), "route", "replace", "blackhole", route)


def heal(subnet: int, number: int, peers: Sequence[int]) -> None:
    """Undo `isolate`."""
    name = namespace(subnet, number)
    for route in _routes(subnet, peers, "all"):
        if route != "default":
            _ip("-n", name, "route", "delete", "blackhole", route, check=False)
    _ip("-n", name, "route", "replace", "default", "via", f"10.77.{subnet}.{HOST_NUMBER}")


def unplug(subnet: int, number: int) -> None:
    """Take the cable out: nothing arrives in either direction, and neither end is told."""
    _ip("link", "set", _link(subnet, number), "down")


def plug_in(subnet: int, number: int) -> None:
    """Undo `unplug`."""
    _ip("link", "set", _link(subnet, number), "up")


def _routes(subnet: int, peers: Sequence[int], cut_off: CutOff) -> Iterator[str]:
    if cut_off in ("peers", "all"):
        yield from (f"{address('namespaces', subnet, peer)}/32" for peer in peers)
    if cut_off in ("clients", "all"):
        yield f"10.77.{subnet}.128/25"
        yield "default"


def _link(subnet: int, number: int) -> str:
    """The end of a broker's cable that is on the bridge."""
    return f"pk{subnet}-{number}"


def _bridge(subnet: int) -> str:
    return f"pk{subnet}"


def _ip(*arguments: str, check: bool = True) -> int:
    """Run `ip`. Returns its exit code, or raises ClusterError."""
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(
            ["ip", *arguments], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
        if check and done.returncode != 0:
            raise ClusterError(
                f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}. Namespaces need root; --network loopback "
                "does without them"
            )
        return done.returncode
    raise ClusterError("there is no `ip` program: install iproute2, or use --network loopback")
