"""Small programs to be supervised."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HANDLES: Final = """
import pathlib
import penstock as ps

app = ps.App({url!r}, group="billing")
seen = open(pathlib.Path(__file__).with_name("handled.txt"), "a", buffering=1)

@app.handle("{topic}", session_timeout_s=2.0)
def bill(value: bytes) -> None:
    print(value.decode(), file=seen)
"""
KILLED_BY_A_RECORD: Final = """
import os
import pathlib
import signal
import penstock as ps

app = ps.App({url!r}, group="billing")
seen = open(pathlib.Path(__file__).with_name("handled.txt"), "a", buffering=1)

@app.handle("{topic}", session_timeout_s=2.0)
def bill(value: bytes) -> None:
    if value == b"0":
        os.kill(os.getpid(), signal.SIGKILL)
    print(value.decode(), file=seen)
"""
IDLE: Final = """
import penstock as ps

stream = ps.connect("memory:")
stream.send("orders", b"1")
app = ps.App(stream, group="idle")
app.handle("orders")(lambda value: print("handled", value, flush=True))
"""
DIES_AT_ONCE: Final = """
print("about to die")
raise RuntimeError(f"no luck at {id(object()):#x}")
"""
DIES_AFTER_PROGRESS: Final = """
import os
import threading
import penstock as ps

stream = ps.connect("memory:")
for number in range(10_000):
    stream.send("orders", str(number).encode())
app = ps.App(stream, group="mortal")
wait = threading.Event()
handled = []

@app.handle("orders")
def bill(value: bytes) -> None:
    handled.append(value)
    wait.wait(0.01)
    if len(handled) == 100:
        print("dying", flush=True)
        os._exit(3)
"""
STUBBORN: Final = """
import signal
import subprocess
import sys
import threading

signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(15, 1); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code])
print("child", child.pid, flush=True)
threading.Event().wait(600)
"""
LEAVES_ORPHANS: Final = """
import glob
import os
import time

if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
    os._exit(0)
os.wait()

def zombies():
    for path in glob.glob("/proc/[0-9]*/stat"):
        with open(path) as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                yield path

until = time.monotonic() + 60
while left := list(zombies()):
    assert time.monotonic() < until, left
    time.sleep(0.05)
raise SystemExit(0)
"""


def write(folder: Path, **programs: str) -> list[Path]:
    files = []
    for name, text in programs.items():
        file = folder / f"{name}.py"
        file.write_text(text)
        files.append(file)
    return files
