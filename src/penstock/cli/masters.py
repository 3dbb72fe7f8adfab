"""Where Spark runs: what can be written for `--master`, and whether somebody answers there."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

import typer

from penstock.errors import PipelineError

_LOCAL: Final = re.compile(r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?")
_HOST: Final = re.compile(r"([^\s:,/]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_KUBERNETES: Final = re.compile(r"k8s://\S+")
_ANSWER_S: Final = 5.0


def check_master(master: str) -> None:
    """Usage is explained for what is no master; PipelineError when none answers."""
    if _LOCAL.fullmatch(master) or _KUBERNETES.fullmatch(master):
        return
    if master == "yarn":
        if not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
            raise PipelineError(
                "for --master yarn, HADOOP_CONF_DIR or YARN_CONF_DIR must name the folder with the settings of the "
                "cluster (yarn-site.xml)"
            )
        return
    hosts = [_HOST.fullmatch(host) for host in master.removeprefix("spark://").split(",")]
    if not master.startswith("spark://") or not all(hosts):
        raise typer.BadParameter(
            f"{master!r} is no master of Spark: write local[N], local[*], spark://HOST:PORT, yarn or k8s://...",
            param_hint="--master",
        )
    _check_answers(master, [(str(found[1]), int(found[2])) for found in hosts if found])


def _check_answers(master: str, hosts: list[tuple[str, int]]) -> None:
    """Spark would try for a minute, and then speak of a stopped context."""
    reason: OSError | None = None
    for host, port in hosts:
        try:
            socket.create_connection((host.strip("[]"), port), _ANSWER_S).close()
            return
        except OSError as error:
            reason = error
    raise PipelineError(f"no Spark master answers at {master} ({reason}): see that it runs, and that this is its port")
