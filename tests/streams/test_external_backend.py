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
