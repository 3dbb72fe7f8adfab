"""Where the real parts are: programs and libraries that tests and benchmarks run beside our own code.

A part is found on the machine (kcat, node, java) or in the cache folder that `python -m tools.set_up` fills (the jars
of Apache Kafka, kafkajs). A part that is not there raises `PartMissing`, whose text says what is missing and what went
wrong when it was last tried, so that whoever skips a test can pass that reason on unchanged.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
KAFKA_POM: Final = ROOT / "tools" / "kafka" / "pom.xml"
KAFKAJS_PACKAGE: Final = ROOT / "tools" / "kafkajs" / "package.json"
KINESIS_PACKAGE: Final = ROOT / "tools" / "kinesis" / "package.json"
ELASTICMQ_POM: Final = ROOT / "tools" / "elasticmq" / "pom.xml"
DEBEZIUM_POM: Final = ROOT / "tools" / "debezium" / "pom.xml"
HADOOP_AWS_POM: Final = ROOT / "tools" / "hadoop-aws" / "pom.xml"
HDFS_POM: Final = ROOT / "tools" / "hdfs" / "pom.xml"
PUBSUB_MODULE: Final = ROOT / "tools" / "pubsub"
QUIXSTREAMS_REQUIREMENTS: Final = ROOT / "tools" / "quixstreams" / "requirements.txt"
PULSAR_ARCHIVE: Final = "org.apache.pulsar:pulsar-server-distribution:4.0.8:tar.gz:bin"
"""The newest version of Apache Pulsar whose server is on Maven."""
ARTEMIS_ARCHIVE: Final = "org.apache.artemis:apache-artemis:2.56.0:tar.gz:bin"
ACTIVEMQ_ARCHIVE: Final = "org.apache.activemq:apache-activemq:5.18.3:tar.gz:bin"
QPID_ARCHIVE: Final = "org.apache.qpid:apache-qpid-broker-j:10.1.0:tar.gz:bin"
JAVA_MINIMUM: Final = 17
"""Apache Kafka 4.x servers refuse to start on anything older."""
JVM_FOLDER: Final = Path("/usr/lib/jvm")


class PartMissing(Exception):
    """A real part is not on this machine; the message says which, and why it could not be had."""


def cache_folder() -> Path:
    """`$PENSTOCK_CACHE`, or `.cache` in the checkout. A relative path counts from the checkout."""
    return ROOT / os.environ.get("PENSTOCK_CACHE", ".cache")


def failure_note(part: str) -> Path:
    """The file in which set-up leaves, in one line, why a part could not be had; absent when it could."""
    return cache_folder() / "could-not-set-up" / f"{part}.txt"


def why_missing(part: str) -> str:
    try:
        return failure_note(part).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "set-up has not tried to get it yet: run `make parts`"


def kcat() -> str:
    """The path of the kcat program (called kafkacat by older distributions)."""
    return _program("kcat", "kcat", "kafkacat")


def chromium() -> str:
    """The path of a Chromium browser, which the tests of the console's pages drive."""
    return _program(
        "chromium", "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
    )


def redis_server() -> str:
    """The path of the redis-server program."""
    return _program("redis", "redis-server")


def nats_server() -> str:
    """The path of the nats-server program, which a package of the tests puts beside their Python."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if os.access(beside, os.X_OK) else _program("nats", "nats-server")


def rabbitmq_server() -> str:
    """The path of the rabbitmq-server program: that in the package's own folder, which any user may run."""
    programs = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return str(programs[-1]) if programs else _program("rabbitmq", "rabbitmq-server")


def rabbitmq_4() -> Path:
    """The folder of a small Debian with RabbitMQ 4 in it, which is run in a chroot: only root may do that."""
    if os.geteuid() != 0:
        raise PartMissing("RabbitMQ 4 runs in a chroot, which only root may use")
    return _from_cache("rabbitmq-4", "rabbitmq-4")


def debootstrap() -> str:
    """The path of the debootstrap program."""
    return _program("debootstrap", "debootstrap")


def postgres_programs() -> str:
    """The folder with PostgreSQL's programs, `initdb` and `postgres`: Debian keeps them off the PATH."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path is not None else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    for folder in folders:
        if os.access(folder / "initdb", os.X_OK) and os.access(folder / "postgres", os.X_OK):
            return str(folder)
    raise PartMissing(f"postgresql is not installed: {why_missing('postgresql')}")


def mariadb_install() -> str:
    """The path of the program that makes MariaDB's system tables; the server's own is `mariadb_server`."""
    mariadb_server()
    # It is a script, and reads its settings with a program of the client's package.
    _program("mariadb", "my_print_defaults")
    return _program("mariadb", "mariadb-install-db")


def mariadb_server() -> str:
    """The path of the mariadbd program: Debian keeps it where only root's PATH looks."""
    usual = Path("/usr/sbin/mariadbd")
    return str(usual) if os.access(usual, os.X_OK) else _program("mariadb", "mariadbd")


def node() -> str:
    """The path of the node program."""
    return _program("node", "node", "nodejs")


def npm() -> str:
    return _program("npm", "npm")


def mvn() -> str:
    return _program("mvn", "mvn")


def kafkajs_modules() -> Path:
    """The `node_modules` folder that holds kafkajs: what NODE_PATH must name."""
    return _from_cache("kafkajs", "kafkajs/node_modules")


def asyncapi_schema() -> Path:
    """The official JSON schema of AsyncAPI 3.0.0, which comes from npm together with kafkajs."""
    return _from_cache("kafkajs", "kafkajs/node_modules/@asyncapi/specs/schemas") / "3.0.0.json"


def kinesis_local() -> Path:
    """The folder of kinesis-local, whose `main.js` node runs."""
    return _from_cache("kinesis-local", "kinesis/node_modules/kinesis-local")


def elasticmq_jars() -> Path:
    """The folder with the jars of ElasticMQ. Its class path is `FOLDER/*`."""
    return _from_cache("elasticmq", "elasticmq/jars")


def debezium_jars() -> Path:
    """The folder with the jars of Debezium's engine and its connector of PostgreSQL. Its class path is `FOLDER/*`."""
    return _from_cache("debezium", "debezium/jars")


def hadoop_aws_jars() -> Path:
    """The folder with the jars that Spark needs for s3a: URLs. Its class path is `FOLDER/*`."""
    return _from_cache("hadoop-aws", "hadoop-aws/jars")


def hdfs_jars() -> Path:
    """The folder with the jars of HDFS, servers included. Its class path is `FOLDER/*`."""
    return _from_cache("hdfs", "hdfs/jars")


def pulsar_folder() -> Path:
    """The folder of Apache Pulsar: its programs, jars and configuration files."""
    return _from_cache("pulsar", "pulsar/server")


def artemis_folder() -> Path:
    """The folder of Apache ActiveMQ Artemis, with its jars in `lib`."""
    return _from_cache("artemis", "artemis/server")


def activemq_folder() -> Path:
    """The folder of Apache ActiveMQ Classic, with `bin/activemq.jar`, which starts it."""
    return _from_cache("activemq", "activemq/server")


def go() -> str:
    """The path of the go program, on PATH or where its own installer puts it."""
    usual = Path("/usr/local/go/bin/go")
    return str(usual) if shutil.which("go") is None and os.access(usual, os.X_OK) else _program("go", "go")


def pubsub_server() -> Path:
    """The program that `tools/pubsub` becomes: Google's own fake of Pub/Sub, as a server."""
    return _from_cache("pubsub", "pubsub") / "pubsub-server"


def qpid_folder() -> Path:
    """The folder of Apache Qpid Broker-J, which has a folder of its version, with its jars in `lib`."""
    return _from_cache("qpid", "qpid/server")


def proton() -> str:
    """The version of the AMQP 1.0 client that this Python has."""
    try:
        return importlib.metadata.version("python-qpid-proton")
    except importlib.metadata.PackageNotFoundError:
        raise PartMissing(f"python-qpid-proton is not installed: {why_missing('proton')}") from None


def quixstreams_python() -> Path:
    """The python of an environment that has Quix Streams in it."""
    return _from_cache("quixstreams", "quixstreams") / "bin" / "python"


def kafka_jars() -> Path:
    """The folder with the jars of Apache Kafka: server, tools, Java client, logging. Its class path is `FOLDER/*`."""
    return _from_cache("kafka", "kafka/jars")


def spark_connector() -> Path:
    """The folder with the jars of Spark's Kafka connector, for the Spark that is installed here."""
    try:
        spark = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise PartMissing("pyspark is not installed: it comes with penstock[spark]") from None
    return _from_cache("spark-connector", f"spark/{spark}/connector")


def kafka_version() -> str:
    """The version of Apache Kafka that `kafka_jars` holds."""
    found = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)<", KAFKA_POM.read_text("utf-8"))
    assert found is not None, f"{KAFKA_POM} names no version of kafka_2.13"
    return found.group(1)


@functools.cache
def java() -> str:
    """The newest `java` of at least `JAVA_MINIMUM` on PATH, in JAVA_HOME or in the JVM folder."""
    return _newest_java("java", _java_programs())


@functools.cache
def java_with_compiler() -> str:
    """As `java`, from a full JDK: one that can also run a `.java` source file as it is."""
    return _newest_java("a JDK", [path for path in _java_programs() if path.resolve().with_name("javac").exists()])


def java_compiler(version: int) -> Path:
    """The `javac` of exactly this version: what it makes of a source is the same on every machine."""
    for program in _java_programs():
        compiler = program.resolve().with_name("javac")
        if compiler.exists() and java_version(program) == version:
            return compiler
    raise PartMissing(f"a JDK of version {version} is not installed: {why_missing('java')}")


def java_version(path: Path) -> int:
    """The feature version (17, 21, ...) of a java program; 0 when it cannot be told."""
    release = path.resolve().parent.parent / "release"
    if release.is_file():
        text = release.read_text("utf-8", errors="replace")
    else:
        try:
            # `java -version` writes to stderr: openjdk version "17.0.15" ...
            text = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
        except (OSError, subprocess.TimeoutExpired):
            return 0
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def _newest_java(what: str, programs: list[Path]) -> str:
    versions = {path: java_version(path) for path in programs}
    newest = max(versions, key=lambda path: versions[path], default=None)
    if newest is None:
        raise PartMissing(f"{what} is not installed: {why_missing('java')}")
    if versions[newest] < JAVA_MINIMUM:
        raise PartMissing(
            f"{what} of version {JAVA_MINIMUM} or newer is not installed, {newest} is {versions[newest]}: "
            f"{why_missing('java')}"
        )
    return str(newest)


def _java_programs() -> list[Path]:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if JVM_FOLDER.is_dir():
        homes += sorted(JVM_FOLDER.iterdir())
    programs = [home / "bin" / "java" for home in homes]
    on_path = shutil.which("java")
    if on_path is not None:
        programs.insert(0, Path(on_path))
    return [program for program in programs if os.access(program, os.X_OK)]


def _program(part: str, *names: str) -> str:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise PartMissing(f"{part} is not installed: {why_missing(part)}")


def _from_cache(part: str, folder: str) -> Path:
    path = cache_folder() / folder
    if not path.is_dir():
        raise PartMissing(f"{part} is not in the cache folder: {why_missing(part)}")
    return path
