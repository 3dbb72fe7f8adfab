"""Kill the broker while records are in flight: all of them arrive, each once.

    python examples/survive_a_crash.py [FOLDER]

The connection notices, restarts the broker of the folder, and sends the unacknowledged records again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import penstock as ps
from penstock.broker import read_address


def main(folder: Path) -> None:
    with ps.connect(f"log:{folder}") as stream:
        start = {0: 0}
        if "numbers" in stream.topics():
            last = list(stream.read("numbers"))[-1]
            start = {0: last.offset + 1}
        for number in range(10_000):
            stream.send("numbers", str(number))
        address = read_address(folder)
        assert address is not None
        print("kill -9", address.pid, "with", stream.unacknowledged, "records under way")
        os.kill(address.pid, signal.SIGKILL)
        for number in range(10_000, 20_000):
            stream.send("numbers", str(number))
        stream.flush(timeout_s=60)
        values = [int(record.value or b"") for record in stream.read("numbers", start)]
        print("sent 20000, stored", len(values), "of which", len(set(values)), "are different")
        assert values == list(range(20_000)), "every record once, and in order"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data").absolute())
