"""Topics, queues, tables and folders as OpenLineage names them: a namespace, which is the system, and a name.

Where OpenLineage has a convention, it is followed (Kafka, PostgreSQL, files, object stores). Otherwise the namespace is
the URL of the system, without credentials.
"""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.abc import Dataset
from penstock.streams.url import kafka_url, log_folder, without_password

POSTGRES_PORT: Final = 5432
_OBJECT_STORES: Final = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs"}
"""Schemes whose paths are keys, without a slash at the start, and how OpenLineage writes them."""


def topic_dataset(url: str, topic: str) -> Dataset:
    """A topic of the stream at a URL. Kafka is named by the first of its brokers, an embedded log by its folder."""
    if (kafka := kafka_url(url)) is not None:
        return Dataset(f"kafka://{kafka.hosts[0]}", topic)
    if (folder := log_folder(url)) is not None:
        return Dataset(f"log:{os.path.normpath(folder)}", topic)
    return Dataset(_bare(url), topic)


def url_dataset(url: str) -> Dataset:
    """A queue or channel, by its URL."""
    system, slashes, rest = _bare(url).partition("://")
    if not slashes:
        scheme, _, name = system.partition(":")
        return Dataset(scheme, name or scheme)
    host, _, name = rest.partition("/")
    return Dataset(f"{system}://{host}", name or "/")


def file_dataset(path: str) -> Dataset:
    """A file or folder, by path or URI."""
    scheme, slashes, rest = path.partition("://")
    if not slashes or scheme == "file":
        return Dataset("file", os.path.abspath(os.path.expanduser((rest if slashes else path).removeprefix("file:"))))
    place, _, key = _bare(path).partition("://")[2].partition("/")
    key = key.rstrip("/")
    return Dataset(f"{_OBJECT_STORES.get(scheme, scheme)}://{place}", key if scheme in _OBJECT_STORES else f"/{key}")


def table_dataset(url: str, table: str) -> Dataset:
    """A table of PostgreSQL or SQLite."""
    if url.startswith("sqlite:"):
        return Dataset(f"sqlite:{os.path.abspath(os.path.expanduser(url.removeprefix('sqlite:')))}", table)
    parts = urlsplit(url)
    host, colon, port = parts.netloc.rpartition("@")[2].split(",")[0].rpartition(":")
    if not colon or port.endswith("]"):  # no port
        host, port = f"{host}{colon}{port}", ""
    database = unquote(parts.path.strip("/")) or unquote(parts.username or "") or "postgres"
    schema = "" if "." in table else "public."
    return Dataset(f"postgres://{host or 'localhost'}:{port or POSTGRES_PORT}", f"{database}.{schema}{table}")


def _bare(url: str) -> str:
    """The URL without user, password and parameters."""
    place = without_password(url).partition("?")[0]
    scheme, slashes, rest = place.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"
