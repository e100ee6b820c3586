"""What a beginner gets wrong is answered by `nightshift run` in one sentence, before a server is started."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.common.errors import BadInput
from nightshift.common.formats import part_names
from nightshift.common.formats.owner_marker import Owner
from nightshift.common.settings import Settings, load_settings
from nightshift.common.spec import FunctionEngineSpec, parse_spec
from nightshift.producer.cli.app import app
from nightshift.producer.local import before_servers, callable_check
from nightshift.producer.local.callable_check import CallableCheck
from tests.support.fleet import Fleet, wait_until

RULES = """
WORDS = {"a": 1}

def length(rows):
    return [{"n": len(row["text"])} for row in rows]

def two(rows, n):
    return rows

class Sized:
    def __init__(self, size):
        self.size = size

    def __call__(self, rows):
        return rows

class Plain:
    pass
"""

SPEC = """name: x
input: {uri: in.jsonl, id: id}
task: {kind: generate, prompt: "Sum up {{ text }}"}
engine: {backend: vllm, model: org/model}
output: {uri: out}
"""

TYPED = """name: x
input: {uri: in.jsonl, id: id}
task: {kind: function}
engine: {backend: function, callable: "rules:length"}
output: {uri: out, schema: {n: integer}}
"""

FUNCTION = ("in.jsonl", "--id", "id", "--out", "out", "--callable")
MODEL = ("in.jsonl", "--id", "id", "--out", "out", "--prompt", "Sum up {{ text }}", "--model")
PLAIN = (*FUNCTION, "rules:length")
NAMED = (*MODEL, "org/model")
FILE = ("job.yaml",)


@dataclass(frozen=True)
class Mistake:
    """What is typed behind `nightshift run`, the files beside it, and what the answer must say."""

    typed: tuple[str, ...]
    says: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()


def changed(old: str, new: str) -> tuple[tuple[str, str]]:
    assert old in SPEC
    return (("job.yaml", SPEC.replace(old, new)),)


def reads(name: str, *rest: str) -> tuple[str, ...]:
    return (name, *PLAIN[1:], *rest)


MISTAKES = {
    "no such input": Mistake(reads("inn.jsonl"), ("inn.jsonl", "no such file")),
    "no such spec": Mistake(("jbo.yaml",), ("jbo.yaml",)),
    "no file matches": Mistake(reads("*.csv"), ("*.csv", "matches no file")),
    "empty input": Mistake(reads("in.csv"), ("no rows",), (("in.csv", ""),)),
    "an array": Mistake(reads("a.jsonl"), ("a.jsonl", "array"), (("a.jsonl", '[{"id": 1}]\n'),)),
    "an array in .json": Mistake(reads("a.json"), ("jq -c '.[]'",), (("a.json", "[]"),)),
    "a broken line": Mistake(reads("a.jsonl"), ("line 2",), (("a.jsonl", '{"id": 1}\n{"id": \n'),)),
    "no Parquet": Mistake(reads("a.parquet"), ("not a Parquet",), (("a.parquet", "hello"),)),
    "a workbook": Mistake(reads("a.xlsx"), ("save it as CSV",), (("a.xlsx", "PK"),)),
    "CSV without a header": Mistake(reads("a.csv"), ("input.id", "1, hi"), (("a.csv", "1,hi\n2,ho\n"),)),
    "CSV with a field too much": Mistake(reads("a.csv"), ("row 1",), (("a.csv", "id,text\n1,a,b\n"),)),
    "CSV of semicolons": Mistake(reads("a.csv"), ('input.delimiter: ";"',), (("a.csv", "id;text\n1;a\n"),)),
    "CSV of semicolons with commas": Mistake(reads("a.csv"), ('input.delimiter: ";"',), (("a.csv", "id;text\n1;a, b\n"),)),
    "another id": Mistake((*PLAIN, "--id", "idd"), ("'idd'", "did you mean 'id'")),
    "ids that repeat": Mistake(
        FILE,
        ("unique_id", "two rows"),
        (*changed("id: id}", "id: id, unique_id: true}"), ("in.jsonl", '{"id": 1, "text": "a"}\n' * 2)),
    ),
    "another column in the prompt": Mistake((*NAMED, "--prompt", "Sum {{ txet }}"), ("did you mean 'text'",)),
    "single braces": Mistake((*NAMED, "--prompt", "Say { text}"), ("{text} in single braces", "write {{ text }}")),
    "another column in the output": Mistake(FILE, ("'titel'",), changed("{uri: out}", "{uri: out, columns: [titel]}")),
    "a prompt that does not parse": Mistake((*NAMED, "--prompt", "Sum {{ text }"), ("template",)),
    "another column in a condition": Mistake((*PLAIN, "--where", "idd > 1"), ("did you mean 'id'",)),
    "a condition that does not parse": Mistake((*PLAIN, "--where", "id => 1"), ("=>",)),
    "output in the input": Mistake(reads("data", "--out", "data/out"), ("lies inside the input",), (("data/a.jsonl", '{"id": 1}\n'),)),
    "input in the output": Mistake((*PLAIN, "--out", "."), ("inside the output directory",)),
    "output that is a file": Mistake((*PLAIN, "--out", "rules.py"), ("is a file",)),
    "no output": Mistake(("in.jsonl", "--callable", "rules:length"), ("--out",)),
    "a function and a model": Mistake((*PLAIN, "--model", "m"), ("--callable", "--model")),
    "a model without a prompt": Mistake(("in.jsonl", "--model", "m", "--out", "out"), ("--prompt",)),
    "a key of no section": Mistake(FILE, ("promt",), changed("prompt:", "promt:")),
    "a tab in the spec": Mistake(FILE, ("job.yaml",), changed("name: x\n", "name: x\nlimits:\n\tbudget: 1\n")),
    "a template without quotes": Mistake(FILE, ("job.yaml",), changed('"Sum up {{ text }}"', "{{ text }}")),
    "no such backend": Mistake(FILE, ("vlm", "vllm"), changed("vllm", "vlm")),
    "no type of a column": Mistake(FILE, ("output.schema", "'n'", "write int64"), (("job.yaml", TYPED),)),
    "a word for a number": Mistake(FILE, ("batch.rows",), changed("engine:", "batch: {rows: many}\nengine:")),
    "no folder of a model": Mistake((*MODEL, "./models/q"), ("./models/q", "not a folder")),
    "no absolute folder of a model": Mistake((*MODEL, "/nowhere/q"), ("/nowhere/q", "not a folder")),
    "a folder without a model": Mistake((*MODEL, "./q"), ("no config.json",), (("q/readme.txt", "hi"),)),
    "no argument of vLLM": Mistake((*NAMED, "--engine-arg", "max_modl_len=9"), ("did you mean 'max_model_len'",)),
    "an argument of vLLM with hyphens": Mistake((*NAMED, "--engine-arg", "max-model-len=9"), ("did you mean 'max_model_len'",)),
    "a regex that does not parse": Mistake((*NAMED, "--regex", "[a-"), ("regex",)),
    "no JSON schema": Mistake((*NAMED, "--schema", "s.json"), ("objekt",), (("s.json", '{"type": "objekt"}'),)),
    "an empty choice": Mistake((*NAMED, "--choice", "a,,b"), ("choice",)),
    "no time": Mistake((*PLAIN, "--finish-by", "tomorow"), ("tomorow", "06:00")),
    "a time that has passed": Mistake((*PLAIN, "--finish-by", "2020-01-01"), ("has passed",)),
    "another function": Mistake((*FUNCTION, "rules:lenght"), ("did you mean rules:length", "rules.py", "'lenght'")),
    "another module, which has another name": Mistake((*FUNCTION, "rulez:shorten"), ("(did you mean rules?)", "looked in")),
    "another module": Mistake((*FUNCTION, "rulez:length"), ("did you mean rules:length", "looked in")),
    "no function named": Mistake((*FUNCTION, "rules"), ("module:name",)),
    "no function": Mistake((*FUNCTION, "rules:WORDS"), ("is a dict",)),
    "a function of two arguments": Mistake((*FUNCTION, "rules:two"), ("argument: 'n'",)),
    "a class without arguments": Mistake((*FUNCTION, "rules:Sized"), ("engine.args", "'size'")),
    "a class that cannot be called": Mistake((*FUNCTION, "rules:Plain"), ("__call__",)),
    "a module that does not parse": Mistake((*FUNCTION, "broken:f"), ("SyntaxError", "broken.py:1"), (("broken.py", "def f(rows)\n"),)),
    "a module that raises": Mistake((*FUNCTION, "broken:f"), ("KeyError: 'K'", "broken.py:3"), (("broken.py", "import os\n\nos.environ['K']\n"),)),
    "a module that imports none": Mistake((*FUNCTION, "broken:f"), ("No module named 'pandsa'", "broken.py:1"), (("broken.py", "import pandsa\n"),)),
    "a module that ends": Mistake((*FUNCTION, "broken:f"), ("exit code 3",), (("broken.py", "import os\nos._exit(3)\n"),)),
}  # fmt: skip


def furnish(folder: Path, mistake: Mistake) -> set[str]:
    files = {"in.jsonl": '{"id": 1, "text": "a b"}\n{"id": 2, "text": "c"}\n', "rules.py": RULES}
    for name, text in {**files, **dict(mistake.files)}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return names(folder)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"__pycache__"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine starts a process as slowly as it must."""
    monkeypatch.setattr(callable_check, "START_SECONDS", 600.0)


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NIGHTSHIFT_DATABASE_URL", "NIGHTSHIFT_BROKER_URL", "NIGHTSHIFT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(before_servers, "IMPORT_SECONDS", 120.0)  # however busy the machine is
    return tmp_path


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path)
    yield found
    found.end()


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_before_a_server_starts(at_home: Path, mistake: Mistake) -> None:
    before = furnish(at_home, mistake)
    found = CliRunner().invoke(app, ["run", *mistake.typed])
    assert found.exit_code == 2, found.output
    assert found.stderr.count("\n") == 1
    assert [said for said in mistake.says if said not in found.stderr] == [], found.stderr
    assert found.stdout == ""
    assert names(at_home) == before


@pytest.mark.parametrize("named", ["another id", "no argument of vLLM", "no JSON schema"])
def test_a_mistake_ends_the_real_command_with_2(tmp_path: Path, named: str) -> None:
    mistake = MISTAKES[named]
    before = furnish(tmp_path, mistake)
    fleet = Fleet(tmp_path)
    fleet.is_furnished = False
    found = fleet.command("run", *mistake.typed)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.count("\n") == 1
    assert names(tmp_path) == before


def test_a_job_of_the_folder_is_checked_before_its_ledger_starts(at_home: Path) -> None:
    (at_home / ".nightshift" / "postgres").mkdir(parents=True)
    furnish(at_home, MISTAKES["another function"])
    found = CliRunner().invoke(app, ["run", *MISTAKES["another function"].typed])
    assert found.exit_code == 2
    assert [path.name for path in (at_home / ".nightshift").rglob("*")] == ["postgres"]


def checked(where: str = "rules:length", **output: Any) -> None:
    """What the look before any server says of a job over the folder `data`."""
    given = {
        "name": "x",
        "input": {"uri": "data", "id": "id", "unique_id": True},
        "task": {"kind": "function"},
        "engine": {"backend": "function", "callable": where},
        "output": {"uri": "out", **output},
    }
    before_servers.check_before_servers(parse_spec(given, "x.yaml"), load_settings(), print)


@pytest.mark.parametrize("more", ['{"id": 1, "te', '{"id": 1, "text": "again"}\n'])
def test_files_that_came_since_are_no_mistake_of_a_known_job(at_home: Path, more: str) -> None:
    """The same command continues the job, and never takes them."""
    line = '{"id": 1, "text": "a"}\n'
    furnish(at_home, Mistake((), (), (("data/a.jsonl", line), ("data/b.jsonl", more))))
    with pytest.raises(BadInput):
        checked()
    (at_home / ".nightshift" / "postgres").mkdir(parents=True)
    with pytest.raises(BadInput):
        checked()
    (at_home / "out").mkdir()
    (at_home / "out" / part_names.OWNER).write_bytes(Owner("a ledger", "a job").encoded())
    checked()


def test_the_mended_command_of_a_known_job_is_checked(at_home: Path) -> None:
    furnish(at_home, Mistake((), (), (("data/a.jsonl", '{"id": 1, "text": "a"}\n'),)))
    (at_home / ".nightshift" / "postgres").mkdir(parents=True)
    (at_home / "out").mkdir()
    (at_home / "out" / part_names.OWNER).write_bytes(Owner("a ledger", "a job").encoded())
    with pytest.raises(BadInput, match="did you mean 'text'"):
        checked(columns=["txet"])
    with pytest.raises(BadInput, match="did you mean rules:length"):
        checked("rules:lenght")


def test_submit_and_serve_never_import_the_code_of_users(
    at_home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module may lie on workers only."""
    furnish(
        at_home,
        Mistake((), (), (("rules.py", "from pathlib import Path\nPath('trace').touch()\n"),)),
    )
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    monkeypatch.syspath_prepend(at_home)
    runner = CliRunner()
    for typed in (PLAIN, (*FUNCTION, "elsewhere:f", "--out", "other")):
        found = runner.invoke(app, ["submit", *typed])
        assert found.exit_code == 0, found.output
    assert not (at_home / "trace").exists()
    assert "rules" not in sys.modules


def check(folder: Path, where: str, seconds: float = 60.0) -> list[str]:
    engine = FunctionEngineSpec.model_validate({"backend": "function", "callable": where})
    lines: list[str] = []
    with CallableCheck(engine, Settings(callable_paths=(str(folder),)), seconds) as found:
        found.result(lambda line: (lines.append(line), (folder / "waiting").touch())[0])
    return lines


def test_a_slow_import_is_announced_and_ends_before_the_check(tmp_path: Path) -> None:
    """The module ends its import only after the line for the user, and its last act is seen."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\nhere = Path(__file__).parent\n"
        "while not (here / 'waiting').exists():\n    time.sleep(0.01)\n"
        "(here / 'table').touch()\ndef f(rows):\n    return rows\n"
    )
    assert check(tmp_path, "slow:f", 0.0) == ["slow takes more than 0 s to import: waiting for it"]
    assert (tmp_path / "table").exists()


def test_what_else_is_wrong_is_answered_without_an_import(at_home: Path) -> None:
    furnish(at_home, Mistake((), (), (("data/a.jsonl", '{"id": 1, "text": "a"}\n'),)))
    (at_home / "rules.py").write_text("from pathlib import Path\nPath('trace').touch()\n")
    with pytest.raises(BadInput, match="txet"):
        checked(columns=["txet"])
    assert not (at_home / "trace").exists()


@pytest.mark.parametrize(
    "code",
    [
        "def f(rows):\n    return rows\n",
        "f = len\n",
        "print('hello')\nimport functools\nf = functools.partial(print, 1)\n",
        "class f:\n    def __init__(self, size=1): ...\n    def __call__(self, rows): ...\n",
        "import subprocess\nsubprocess.Popen(['sleep', '60'])\ndef f(*rows): ...\n",
    ],
    ids=["a function", "of C", "that prints", "a class", "that starts a process"],
)
def test_what_a_worker_can_call_is_not_refused(tmp_path: Path, code: str) -> None:
    (tmp_path / "fine.py").write_text(code)
    assert check(tmp_path, "fine:f") == []


def test_a_module_with_the_name_of_an_installed_one_is_refused_as_by_the_worker(
    tmp_path: Path,
) -> None:
    (tmp_path / "numpy.py").write_text("def f(rows):\n    return rows\n")
    with pytest.raises(BadInput, match="an installed module has the name 'numpy', too"):
        check(tmp_path, "numpy:f")


@pytest.mark.slow
def test_a_cancelled_job_needs_its_module_no_more(alone: Fleet) -> None:
    furnish(alone.folder, Mistake((), ()))
    begun = alone.folder / "begun"
    (alone.folder / "rules.py").write_text(
        "import pathlib, time\n"
        "def length(rows):\n"
        f"    pathlib.Path({str(begun)!r}).touch()\n"
        "    time.sleep(60)  # under way until the cancel ends its process\n"
    )
    running = alone.start("nightshift.producer.cli", "run", *PLAIN)
    wait_until(begun.exists, what="a call of the function")
    done = alone.command("cancel", "1")
    assert done.returncode == 0, done.stderr
    assert running.wait(60) == 3
    (alone.folder / "rules.py").unlink()
    again = alone.command("run", *PLAIN)
    assert (again.returncode, "was cancelled" in again.stdout) == (3, True), again.stderr


@pytest.mark.slow
def test_a_completed_job_needs_its_module_no_more(alone: Fleet) -> None:
    """The same command tells of its output, and loads nothing."""
    furnish(alone.folder, Mistake((), ()))
    assert alone.command("run", *PLAIN).returncode == 0
    (alone.folder / "rules.py").unlink()
    again = alone.command("run", *PLAIN)
    assert again.returncode == 0, again.stderr
    assert (
        json.loads((alone.folder / "out" / "_manifest.json").read_text())["status"] == "completed"
    )
