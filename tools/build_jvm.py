"""Builds the jar that Penstock brings into Spark's JVM: `python -m tools.build_jvm`.

The jar is checked in, so that no user needs a compiler. The same sources give the same jar, to the byte, as it is
always made by the javac of one version; a test holds the one against the other.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from penstock.spark.jvm import JAR, SOURCES
from tools import parts

RELEASE: Final = 17
"""The oldest Java that Spark 4 runs on: for which it is compiled, and by which."""
COMPILE_TIMEOUT_S: Final = 120
THE_DAWN: Final = (1980, 1, 1, 0, 0, 0)
"""The first moment that a zip file knows."""
MANIFEST: Final = "META-INF/MANIFEST.MF"


class BuildFailed(Exception):
    """The jar could not be built; the message is what the compiler said."""


def main() -> int:
    try:
        fresh = JAR.with_suffix(".fresh")
        fresh.write_bytes(jar_bytes(parts.java_compiler(RELEASE)))
        fresh.replace(JAR)  # a JVM that has the former one open keeps it
    except (BuildFailed, parts.PartMissing) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    sys.stdout.write(f"{JAR.relative_to(parts.ROOT)}: built from the sources {digest_in(JAR)}\n")
    return 0


def jar_bytes(compiler: Path) -> bytes:
    """The whole jar, compiled from the sources."""
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder)
        compile_into(classes, compiler)
        entries = {str(file.relative_to(classes)): file.read_bytes() for file in sorted(classes.rglob("*.class"))}
    manifest = f"Manifest-Version: 1.0\r\nPenstock-Sources: {digest_of_sources()}\r\n"
    jar = io.BytesIO()
    # Nothing is compressed: two versions of zlib do not always agree, and there is little to gain.
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {MANIFEST: manifest.encode("ascii"), **entries}.items():
            entry = zipfile.ZipInfo(name, THE_DAWN)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return jar.getvalue()


def compile_into(folder: Path, compiler: Path) -> None:
    options = [
        "--release",
        str(RELEASE),
        "-Xlint:all,-classfile,-path",
        "-Werror",
        "-g:source,lines",
        "-d",
        str(folder),
    ]
    command = [
        str(compiler),
        *options,
        "-cp",
        ":".join(map(str, library_jars())),
        *(str(file) for file in source_files()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise BuildFailed(f"javac failed:\n{done.stdout}{done.stderr}")


def source_files() -> list[Path]:
    return sorted(SOURCES.rglob("*.java"))


def library_jars() -> list[Path]:
    """The jars of the pip package of Spark. Some name others in their manifests that are not there."""
    import pyspark

    return sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))


def digest_of_sources() -> str:
    """Of what is compiled; short enough for one line of a manifest."""
    digest = hashlib.sha256()
    for file in source_files():
        digest.update(str(file.relative_to(SOURCES)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:40]


def digest_in(jar: Path) -> str:
    """What a jar says it was made of."""
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(MANIFEST).decode("ascii").splitlines()
    return dict(line.split(": ", 1) for line in lines)["Penstock-Sources"]


if __name__ == "__main__":
    sys.exit(main())
