"""A package of somebody else's adds schemes: installed into a fresh environment, it works wherever ours do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

import pytest

from tests import real_parts

PACKAGE: Final = Path(__file__).parent / "external_backend"
TIMEOUT_S: Final = 120.0

pytestmark = [pytest.mark.xdist_group("external-backend"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that sees this one's packages, and has the external one installed by pip."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=False)
    found = folder / "venv" / "bin" / "python"
    site = folder / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "penstock-here.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    source = folder / "source"
    shutil.copytree(PACKAGE, source)
    run(
        *(sys.executable, "-m", "pip", "--python", found, "install", "--quiet"),
        *("--no-deps", "--no-build-isolation", "--no-index", source),
    )
    return found


def run(*command: object, given: str = "") -> str:
    done = subprocess.run(
        [str(part) for part in command], input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PROGRAM: Final = """
import sys
import penstock
from penstock.errors import ConfigError

url, letters = sys.argv[1:]
with penstock.connect(url) as stream:
    assert type(stream) is penstock.Connection
    for number in range(5):
        stream.send("orders", number, key="k").result(5)
    assert [record.value for record in stream.read("orders")] == [b"0", b"1", b"2", b"3", b"4"]

app = penstock.App(url, group="billing")
handled = []

@app.handle(penstock.Topic("orders", int), dead_letters=letters, retry=penstock.Retry(1))
def bill(order: int) -> None:
    if order == 3:
        raise penstock.Reject("never")
    handled.append(order)
    if order == 4:
        app.stop()

app.run()
assert sorted(handled) == [0, 1, 2, 4], handled

for wrong in ({"speed": 3}, {"acks": 1}):
    try:
        penstock.connect(url, **wrong)
    except ConfigError as error:
        assert "jsonl: URLs have no option" in str(error)
    else:
        raise AssertionError(wrong)
print("done")
"""


def test_its_schemes_work_in_connect_and_app(python: Path, tmp_path: Path) -> None:
    letters = f"cellar:{tmp_path}/letters.db"
    assert run(python, "-c", PROGRAM, f"jsonl:{tmp_path}/data", letters) == "done\n"
    command = (python, "-m", "penstock.cli")
    assert "never" in run(*command, "dlq", "list", letters, "--url", f"jsonl:{tmp_path}/data")


def test_its_checkpoints_are_kept_where_they_are_wanted(python: Path, tmp_path: Path) -> None:
    """`checkpoints=` opens the store by its scheme; a second run goes on where the first one was."""
    program = """
import sys
import penstock
from penstock.checkpoints import open_store

url, store = sys.argv[1:]
handled = []
for number in range(4):
    if number % 2 == 0:
        with penstock.connect(url) as stream:
            stream.send("orders", number).result(5)
            stream.send("orders", number + 1).result(5)
    app = penstock.App(url, group="billing", checkpoints=store)
    app.handle(penstock.Topic("orders", int), dead_letters=False)(handled.append)
    app.run(end="latest")
assert handled == [0, 1, 2, 3], handled
[(key, checkpoint)] = open_store(store).checkpoints("billing").items()
print(key.topic, checkpoint.start)
"""
    assert run(python, "-c", program, f"jsonl:{tmp_path}/data", f"cellar:{tmp_path}/own.db") == "orders 4\n"


QUEUES: Final = """
import sys, threading, time
import penstock
from penstock.channels import open_channel
from penstock.gateway import Gateway
from penstock.model import NewRecord
from penstock.queues import open_queue

folder, post = sys.argv[1:]
queue, letters, stream = f"crate:{folder}/jobs", f"cellar:{folder}/letters.db", f"jsonl:{folder}/data"

jobs = open_queue(queue)
jobs.send([NewRecord("jobs", str(number).encode(), b"k") for number in range(5)])
app = penstock.App(stream, group="workers")
handled = []

@app.handle(queue, dead_letters=letters, retry=penstock.Retry(2, first_delay_s=0))
def work(job: str) -> None:
    if job == "3":
        raise penstock.Reject("never")
    handled.append(job)

def stop_when(there):
    deadline_s = time.monotonic() + 60
    while not there() and time.monotonic() < deadline_s:
        time.sleep(0.01)

runs = threading.Thread(target=app.run)
runs.start()
dead = penstock.open_dead_letters(letters)
stop_when(lambda: len(handled) == 4 and dead.count(penstock.DeadLetterFilter()))
app.stop()
runs.join(60)
assert sorted(handled) == ["0", "1", "2", "4"], handled
assert not jobs.receive(10, 0.0)

gateway = Gateway(f"post:{post}", f"{stream}#ticks", inbox=f"log:{folder}/inbox")
runs = threading.Thread(target=gateway.run)
runs.start()
sender = open_channel(f"post:{post}")
def sends():
    try:
        sender.send([NewRecord("post", b"tick", b"k", (("h", b"1"),))])
    except penstock.errors.BrokerUnavailableError:
        return False  # the gateway does not listen yet
    return True
stop_when(sends)
stop_when(lambda: gateway.progress().delivered == 1)
gateway.stop()
runs.join(60)
with penstock.connect(stream) as connection:
    [tick] = connection.read("ticks")
print(tick.key, tick.value, dict(tick.headers)["h"])
"""


def test_its_queue_and_its_channel_work_in_app_and_gateway(
    python: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    post = tmp_path_factory.mktemp("post") / "ticks"  # the path of a socket is at most 107 bytes long
    assert run(python, "-c", QUEUES, tmp_path, post) == "b'k' b'tick' b'1'\n"


PIPELINE: Final = """
import sys
import penstock
from penstock.spark import Pipeline, TopicTarget

url, log, checkpoints = sys.argv[1:]
with penstock.connect(url) as stream:
    for number in range(20):
        stream.send("numbers", number, key="k").result(5)
with Pipeline("copying", url, checkpoints=checkpoints) as pipe:
    pipe.write(pipe.read("numbers", dead_letters=None).select("key", "value"), TopicTarget(log, "copies"))
    pipe.run(once=True)
with penstock.connect(log) as connection:
    print(sorted(int(record.value) for record in connection.read("copies")))
"""


@pytest.mark.xdist_group("spark-cluster")
def test_a_pipeline_reads_its_stream(python: Path, tmp_path: Path) -> None:
    real_parts.java()
    found = run(python, "-c", PIPELINE, f"jsonl:{tmp_path}/data", f"log:{tmp_path}/log", tmp_path / "checkpoints")
    assert found == f"{list(range(20))}\n"


def test_its_schemes_work_in_the_commands(python: Path, tmp_path: Path) -> None:
    command, url = (python, "-m", "penstock.cli"), ("--url", f"jsonl:{tmp_path}/data")
    run(*command, "topics", "create", "orders", *url)
    run(*command, "produce", "orders", *url, given="first\nsecond\n")
    [line] = json.loads(run(*command, "topics", "list", "--json", *url))
    assert (line["topic"], line["partitions"], line["records"]) == ("orders", 1, 2)
    assert run(*command, "consume", "orders", "--format", "raw", *url) == "first\nsecond\n"
    assert "records" in run(*command, "topics", "describe", "orders", *url)


CONSOLE: Final = """
import sys
from pathlib import Path
from penstock.console.service import Service
from penstock.console.views import MessageQuery, Person

ann = Person("ann", "127.0.0.1")
with Service(sys.argv[1], state=Path(sys.argv[2]), dead_letters=[sys.argv[3]]) as console:
    console.create_topic(ann, "orders")
    console.produce(ann, "orders", None, "hello")
    snapshot = console.look_now()
    assert snapshot.problem is None, snapshot.problem
    assert snapshot.topics["orders"].records == 1
    page = console.messages(MessageQuery("orders"))
    print(page.rows[0].value.text)
"""


def test_its_schemes_work_in_the_console(python: Path, tmp_path: Path) -> None:
    assert "hello" in run(
        python, "-c", CONSOLE, f"jsonl:{tmp_path}/data", tmp_path / "console", f"cellar:{tmp_path}/letters.db"
    )
