"""UDP multicast between hosts: network namespaces with a cable between them, which is cut and mended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.consuming.eventually import wait_until
from tests.systems.udp_sender import GROUP

pytestmark = [pytest.mark.system("UDP"), pytest.mark.xdist_group("udp")]

COUNT: Final = 10_000
PORT: Final = 5000
ADDRESSES: Final = ("10.77.0.1", "10.77.0.2")
GROUP_6: Final = "[ff15::77]"
ADDRESSES_6: Final = ("fd77::1", "fd77::2")
WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Hosts:
    """Two hosts with a network interface each."""

    names: tuple[str, str]

    def start(self, host: int, *arguments: str) -> subprocess.Popen[bytes]:
        command = ["ip", "netns", "exec", self.names[host], sys.executable, "-m", "tests.systems.udp_host", *arguments]
        return subprocess.Popen(command)

    def link(self, host: int, state: str) -> None:
        _ip("-n", self.names[host], "link", "set", "eth0", state)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=WAIT_S)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    name = uuid.uuid4().hex[:8]
    found = Hosts((f"penstock-a-{name}", f"penstock-b-{name}"))
    with ExitStack() as stack:
        try:
            for each in found.names:
                _ip("netns", "add", each)
                stack.callback(_ip, "netns", "del", each)
            first, second = found.names
            _ip("-n", first, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", second)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine does not allow network namespaces: {error.stderr.decode().strip()}")
        for each, address, address_6 in zip(found.names, ADDRESSES, ADDRESSES_6, strict=True):
            _ip("-n", each, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", each, "link", "set", "eth0", "up")
            _ip("-n", each, "address", "add", f"{address_6}/64", "dev", "eth0", "nodad")
        yield found


@pytest.mark.parametrize("cut", ["at the sender", "at the receiver"])
def test_what_was_sent_while_the_cable_was_cut_is_recovered(hosts: Hosts, tmp_path: Path, cut: str) -> None:
    arrived, sent = tmp_path / "arrived", tmp_path / "sent"
    at = 0 if cut == "at the sender" else 1

    def url(host: int) -> str:
        return f"udp://{GROUP}:{PORT}?interface={ADDRESSES[host]}&insecure=true&recover_s=20&rate_bytes_per_s=400000"

    def is_sent(count: int) -> bool:
        return sent.exists() and int(sent.read_text() or 0) >= count

    listener = hosts.start(1, "listen", url(1), str(COUNT), str(arrived))
    processes = [listener]
    try:
        wait_until(arrived.exists, WAIT_S)
        processes.append(hosts.start(0, "send", url(0), str(COUNT), str(sent)))
        wait_until(lambda: is_sent(COUNT // 5), WAIT_S)
        hosts.link(at, "down")
        if cut == "at the sender":
            wait_until(sent.with_suffix(".refused").exists, WAIT_S)
        else:
            wait_until(lambda: is_sent(COUNT // 2), WAIT_S)
        hosts.link(at, "up")
        for process in processes:
            assert process.wait(WAIT_S) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait(WAIT_S)
    *numbers, lost = arrived.read_text().splitlines()
    assert lost == "lost 0"
    assert list(map(int, numbers)) == list(range(COUNT)), "each once, and in order"


def test_ipv6_groups_work(hosts: Hosts, tmp_path: Path) -> None:
    arrived, sent = tmp_path / "arrived", tmp_path / "sent"
    url = f"udp://{GROUP_6}:{PORT}?interface=eth0&insecure=true"
    processes = [hosts.start(1, "listen", url, "1000", str(arrived))]
    try:
        wait_until(arrived.exists, WAIT_S)
        processes.append(hosts.start(0, "send", url, "1000", str(sent)))
        for process in processes:
            assert process.wait(WAIT_S) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait(WAIT_S)
    assert arrived.read_text().splitlines() == [*map(str, range(1_000)), "lost 0"]
