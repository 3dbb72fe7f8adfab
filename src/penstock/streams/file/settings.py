"""Settings of `file:` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.streams.backend_url import check_not_negative, check_positive


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Settings of `file:` URLs."""

    format: Literal["auto", "jsonl", "csv"] = "auto"
    """What a file holds whose name does not end in .jsonl, .ndjson, .csv or .parquet."""
    key_field: str = ""
    """For records of other programs: the field that is the key. Empty: they have no key."""
    timestamp_field: str = ""
    """For records of other programs: the field with the time, ISO 8601 or milliseconds since 1970."""
    envelope: bool = True
    """Append lines that keep key, headers, timestamp and any bytes. false: the value alone, which must be one line; the
    rest of a record is not kept."""
    delimiter: str = ","
    """Between the columns of CSV."""
    fsync: bool = True
    """Records are on disk when they are acknowledged. false: after a power failure the newest may be missing."""
    poll_interval_s: float = 0.1
    """How often a waiting reader looks at the file: latency against CPU."""
    rotation_wait_s: float = 1.0
    """How long a rotated file must be unchanged before the new one is read: writers may not have noticed yet."""
    max_record_bytes: int = 64 << 20
    """Longer lines are an error, and larger records are refused."""

    def __post_init__(self) -> None:
        check_positive(self, "poll_interval_s", "max_record_bytes")
        check_not_negative(self, "rotation_wait_s")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ConfigError(f"delimiter={self.delimiter!r} must be one character, and not a quote or a newline")
