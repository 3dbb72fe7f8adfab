"""URLs of our own streams, and URLs without their passwords."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from penstock.errors import UrlError
from penstock.streams.schemes import scheme_of

KAFKA_PORT: Final = 9092
KAFKA_SCHEMES: Final = ("log", "kafka")
"""The schemes of streams that speak Kafka's protocol."""
LOG_CHECKPOINTS: Final = "checkpoints.sqlite"
"""The file in the data folder of an embedded log with the checkpoints of its consumers."""
CONFIG: Final = "config"
"""The parameter of a kafka: URL that names a file of settings."""
_URL: Final = re.compile(r"\s*[a-zA-Z][a-zA-Z0-9+.-]*://\S")
_SECRET: Final = re.compile(r"password|passphrase|secret|token|credential|jaas|\.pem$|^query$", re.IGNORECASE)
"""Names of parameters that must not be shown."""
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<name>[^\s:@/?#\[\]]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Host:
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
    """`kafka://HOST:PORT,...?SETTING=VALUE&...`: some of the brokers, and settings of librdkafka.

    As in any URL, `%26` stands for the `&`, and `%25` for the `%`, of a password.
    """

    hosts: tuple[Host, ...]
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    config: str | None = None
    """A file with more settings; "" means no file, even if the environment names one."""

    @property
    def bootstrap(self) -> str:
        return ",".join(map(str, self.hosts))


@dataclass(frozen=True, slots=True)
class MemoryUrl:
    """`memory:NAME`: records in this process. The name may be empty."""

    name: str


def parse_url(url: str) -> LogUrl | KafkaUrl | MemoryUrl:
    """Parse a URL of one of our own schemes. Raises UrlError that says what is wrong with it."""
    scheme = scheme_of(url)
    rest = url.strip().partition(":")[2] if scheme else ""
    if scheme == "log":
        return LogUrl(_folder(url, rest))
    if scheme == "kafka":
        hosts, _, parameters = rest.partition("?")
        settings = _settings(url, parameters)
        config = settings.pop(CONFIG, None)
        return KafkaUrl(_hosts(url, hosts), tuple(settings.items()), config)
    if scheme == "memory":
        if rest.startswith("/"):
            raise UrlError(f"{url!r} has slashes before the name: write memory:{rest.strip('/')}")
        return MemoryUrl(rest)
    raise UrlError(f"{without_password(str(url))!r} is not a log:, kafka: or memory: URL")


def log_folder(url: str) -> Path | None:
    """The data folder of a `log:` URL; None for any other URL."""
    where = parse_url(url) if scheme_of(url) == "log" else None
    return where.folder if isinstance(where, LogUrl) else None


def kafka_url(url: str) -> KafkaUrl | None:
    """A parsed `kafka:` URL; None for any other URL."""
    where = parse_url(url) if scheme_of(url) == "kafka" else None
    return where if isinstance(where, KafkaUrl) else None


def is_memory(url: str) -> bool:
    """Whether the stream is in memory, where no other process can see it."""
    return scheme_of(url) == "memory"


def _folder(url: str, rest: str) -> Path:
    if not rest:
        raise UrlError(f"{url!r} names no folder: write log:./data")
    if rest.startswith("//") and not rest.startswith("///"):
        raise UrlError(f"{url!r} has a host instead of a folder: write log:{rest[2:] or './data'}")
    return Path(rest).expanduser().absolute()


def _hosts(url: str, rest: str) -> tuple[Host, ...]:
    shown = without_password(url)
    if not rest.startswith("//"):
        raise UrlError(f"{shown!r} lacks the slashes: write kafka://{rest or f'127.0.0.1:{KAFKA_PORT}'}")
    hosts = rest.removeprefix("//").removesuffix("/")
    if "@" in hosts:
        raise UrlError(
            "a kafka:// URL cannot have a user and password before its hosts: write sasl.username=... and "
            "sasl.password=... to a file, with security.protocol=SASL_SSL, and name it: kafka://HOST:PORT?config=FILE"
        )
    if "/" in hosts:
        raise UrlError(f"{shown!r} has a path: name the topic where you send and read, not in the URL")
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
                "?security.protocol=SASL_SSL&sasl.mechanism=PLAIN, and %26 for an & in a value"
            )
        if name in found:
            raise UrlError(f"{without_password(url)!r} has {name} twice")
        found[name] = unquote(value)
    return found


def without_password(url: str) -> str:
    """Any URL without its secrets, for messages: without the password, and without parameters named like secrets."""
    if _URL.match(url) is None and not url.lstrip().lower().startswith("kafka:"):
        return url
    place, _, parameters = url.partition("?")
    scheme, slashes, rest = place.partition("://")
    who, at, where = rest.rpartition("@")
    kept = [
        each for each in parameters.split("&") if "=" in each and not _SECRET.search(unquote(each.partition("=")[0]))
    ]
    return f"{scheme}{slashes}{who.partition(':')[0]}{at}{where}" + (f"?{'&'.join(kept)}" if kept else "")
