"""Installs the project and what is around it into the environment it runs in: `python -m tools.install core|demo|dev`.

`core` is what a user gets, `demo` adds Spark, the console and what draws the report, `dev` also what tests, checks and
benchmarks import. uv does it when uv can be had, because it takes seconds; pip otherwise. The dependency groups are
read here rather than passed by name, since the pip of a fresh Debian is older than `--group`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
EXTRAS: Final = {"core": "", "demo": "[demo]", "dev": "[demo,numba]"}
GROUPS: Final = {"core": (), "demo": (), "dev": ("check", "test")}
UV: Final = Path(sys.executable).with_name("uv")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in EXTRAS:
        sys.stderr.write(f"usage: python -m tools.install {'|'.join(EXTRAS)}\n")
        return 2
    if sys.prefix == sys.base_prefix:
        sys.stderr.write("tools.install wants to run inside a virtual environment; `make` creates one\n")
        return 2
    what = requirements(arguments[0])
    return 0 if install_with_uv(what) else install_with_pip(what)


def requirements(level: str) -> list[str]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        groups: dict[str, list[str]] = tomllib.load(file)["dependency-groups"]
    return ["--editable", f".{EXTRAS[level]}", *(package for group in GROUPS[level] for package in groups[group])]


def install_with_uv(what: list[str]) -> bool:
    """True when all is installed; False leaves the work to pip."""
    if not UV.exists() and call(sys.executable, "-m", "pip", "install", "--quiet", "uv") != 0:
        sys.stderr.write("uv could not be installed; going on with pip, which takes longer\n")
        return False
    command = [str(UV), "pip", "install", "--quiet", "--python", sys.executable, *what]
    if call(*command, environment=uv_settings()) != 0:
        sys.stderr.write("uv could not install the packages; trying again with pip\n")
        return False
    return True


def uv_settings() -> dict[str, str]:
    """uv reads no settings of pip: where the machine points pip at an index of its own, point uv there too."""
    if "UV_DEFAULT_INDEX" in os.environ or "UV_INDEX_URL" in os.environ:
        return {}
    settings = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"^\S*index-url='([^']+)'", settings, re.MULTILINE)
    return {"UV_DEFAULT_INDEX": found.group(1)} if found else {}


def install_with_pip(what: list[str]) -> int:
    return call(sys.executable, "-m", "pip", "install", "--quiet", *what)


def call(*command: str, environment: dict[str, str] | None = None) -> int:
    return subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
