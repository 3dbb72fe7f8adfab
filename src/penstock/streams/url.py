"""URLs: which stream is meant, and where it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.errors import UrlError

SUPPORTED: Final = "log:FOLDER (such as log:./data), kafka://HOST:PORT[,HOST:PORT] and memory:NAME"
KAFKA_PORT: Final = 9092
CONFIG: Final = "config"
"""The parameter of a kafka: URL that names a file of settings."""
_SCHEME: Final = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>{}]+")
_SECRET: Final = re.compile(r"password|passphrase|secret|token|credential|jaas|\.pem$", re.IGNORECASE)
"""Names of parameters that are not shown."""
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<name>[^\s:@/?#\[\]]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Host:
    """A host and its port."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class LogUrl:
    """`log:FOLDER`: the embedded log in a data folder of this machine."""

    folder: Path


@dataclass(frozen=True, slots=True)
class KafkaUrl:
    """`kafka://HOST:PORT,...?SETTING=VALUE&...`: brokers that are running already. Any of them tells about the others.

    Behind the question mark stand settings of librdkafka, by its names. `%` and two digits is a byte, as in any URL:
    `%26` is the `&`, and `%25` the `%`, of a password.
    """

    hosts: tuple[Host, ...]
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of librdkafka."""
    config: str | None = None
    """The file with more of them; empty: none, also if the environment names one."""

    @property
    def bootstrap(self) -> str:
        return ",".join(map(str, self.hosts))


@dataclass(frozen=True, slots=True)
class MemoryUrl:
    """`memory:NAME`: the memory of this process that goes by this name. The name may be empty."""

    name: str


def parse_url(url: str) -> LogUrl | KafkaUrl | MemoryUrl:
    """What the URL means; UrlError says what is wrong with it, and what can be written."""
    match = _SCHEME.fullmatch(url.strip())
    scheme = match["scheme"].lower() if match else ""
    rest = match["rest"] if match else ""
    if scheme == "log":
        return LogUrl(_folder(url, rest))
    if scheme == "kafka":
        hosts, _, parameters = rest.partition("?")
        settings = _settings(url, parameters)
        return KafkaUrl(
            _hosts(url, hosts),
            tuple((name, settings[name]) for name in settings if name != CONFIG),
            settings.get(CONFIG),
        )
    if scheme == "memory":
        return MemoryUrl(_name(url, rest))
    if not url.strip():
        raise UrlError(f"the URL is empty; supported now: {SUPPORTED}")
    raise UrlError(f"{without_password(url)!r} is no URL of a stream{_guess(url.strip())}; supported now: {SUPPORTED}")


def _guess(url: str) -> str:
    """What somebody may have meant who left the scheme away."""
    if url.startswith((".", "/", "~")):
        return f", did you mean log:{url}"
    if re.fullmatch(r"[\w.-]+:\d{1,5}", url):
        return f", did you mean kafka://{url}"
    return ""


def _folder(url: str, rest: str) -> Path:
    if not rest:
        raise UrlError(f"{url!r} names no folder: write log:./data")
    if rest.startswith("//") and not rest.startswith("///"):
        raise UrlError(f"{url!r} has a host where the folder belongs: write log:{rest[2:] or './data'}")
    return Path(rest).expanduser().absolute()


def _name(url: str, rest: str) -> str:
    if rest.startswith("/"):
        raise UrlError(f"{url!r} has slashes where the name belongs: write memory:{rest.strip('/')}")
    return rest


def _hosts(url: str, rest: str) -> tuple[Host, ...]:
    shown = without_password(url)
    if not rest.startswith("//"):
        raise UrlError(f"{shown!r} lacks the slashes: write kafka://{rest or f'127.0.0.1:{KAFKA_PORT}'}")
    hosts = rest.removeprefix("//").removesuffix("/")
    if "@" in hosts:
        raise UrlError(
            "a kafka:// URL carries no user and password before its hosts: write sasl.username=... and "
            "sasl.password=... into a file, beside security.protocol=SASL_SSL, and name it: kafka://HOST:PORT?config=FILE"
        )
    if "/" in hosts:
        raise UrlError(f"{shown!r} has more than hosts in it: name the topic where you send and read, not in the URL")
    return tuple(_host(url, part) for part in hosts.split(","))


def _host(url: str, text: str) -> Host:
    match = _HOST.fullmatch(text.strip())
    port = int(match["port"] or KAFKA_PORT) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise UrlError(f"{text!r} in {without_password(url)!r} is not HOST:PORT, such as 127.0.0.1:{KAFKA_PORT}")
    return Host(match["v6"] or match["name"], port)


def _settings(url: str, parameters: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for parameter in parameters.split("&") if parameters else ():
        written, equals, value = parameter.partition("=")
        name = unquote(written).strip()
        if not name or not equals:
            raise UrlError(
                f"{without_password(url)!r} has a parameter that is not NAME=VALUE: write settings of librdkafka as "
                "?security.protocol=SASL_SSL&sasl.mechanism=PLAIN, and %26 for an & inside of a value"
            )
        if name in found:
            raise UrlError(f"{without_password(url)!r} has {name} twice")
        found[name] = unquote(value)
    return found


def without_password(url: str) -> str:
    """A URL, of a stream or of any other place, fit to be shown: postgresql://me:secret@host/db is
    postgresql://me@host/db, and parameters that are a secret by their names are left out."""
    if _URL.fullmatch(url) is None and not url.lstrip().lower().startswith("kafka:"):
        return url
    place, _, parameters = url.partition("?")
    scheme, slashes, rest = place.partition("://")
    who, at, where = rest.rpartition("@")
    kept = [
        each for each in parameters.split("&") if "=" in each and not _SECRET.search(unquote(each.partition("=")[0]))
    ]
    return f"{scheme}{slashes}{who.partition(':')[0]}{at}{where}" + (f"?{'&'.join(kept)}" if kept else "")
