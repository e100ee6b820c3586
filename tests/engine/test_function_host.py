"""Functions in a process of their own: what they may do to it, and what nobody else notices."""

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from nightshift.common.allocation.load_errors import case_of
from nightshift.common.errors import EngineGone, EngineLoadFailed
from nightshift.common.settings import Settings
from nightshift.common.spec import FunctionEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.producer.local.callable_check import CallableCheck
from nightshift.worker.engines.function import host_process
from nightshift.worker.engines.function.engine import FunctionEngine
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal
from tests.support.fleet import is_alive, wait_until
from tests.support.functions import hosted, outcomes_of, work_of

MIB = 2**20

Host = Callable[..., FunctionEngine]


@pytest.fixture
def host() -> Iterator[Host]:
    """Makes engines over real hosts, which end with the test."""
    made: list[FunctionEngine] = []

    def make(name: str = "callables:obey", *args: Any, **settings: Any) -> FunctionEngine:
        made.append(hosted(name, *args, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def obedient() -> Iterator[FunctionEngine]:
    """One engine for tests that end no host."""
    engine = hosted("callables:obey")
    yield engine
    engine.close()


def obeying(engine: FunctionEngine, *orders: str) -> dict[int, Outcome]:
    """The outcomes of a batch whose rows say these orders."""
    return outcomes_of(engine, [{"do": do, "n": number} for number, do in enumerate(orders)])


def refusal(outcome: Outcome) -> Refusal:
    assert isinstance(outcome, Refusal)
    return outcome


def columns(outcome: Outcome) -> Any:
    assert isinstance(outcome, Answer)
    return outcome.columns


# ---------------------------------------------------------------- what a function returns


@pytest.mark.parametrize(
    ("order", "kind", "says"),
    [
        ("raise", "function_error", "callables:obey raised ValueError: told to raise"),
        ("raise what cannot be said", "function_error", "raised Unspeakable"),
        ("exit", "function_error", "raised SystemExit: 3"),
        ("return nothing", "function_error", "returned NoneType, not a list of dicts"),
        ("return a text", "function_error", "returned str, not a list of dicts"),
        ("return a dict", "function_error", "returned dict, not a list of dicts"),
        ("return too few", "function_error", "returned 0 results for 1 row"),
        ("a number", "function_error", "returned int for this row, not a dict of columns"),
        ("nothing", "function_error", "returned NoneType for this row"),
        ("a text", "function_error", "returned str for this row"),
        ("a key that is none", "function_error", "returned dict for this row"),
        ("a dict that holds itself", "bad_type", "the column 'v' holds a dict"),
        ("an object", "bad_type", "the column 'v' holds a object"),
        ("a number that is too large", "bad_type", "'v' holds 1180591620717411303424"),
        ("a mixed list", "bad_type", "the column 'v' holds a list, which Arrow cannot hold"),
    ],
)
def test_what_is_no_answer_is_an_error_of_its_row_alone(
    obedient: FunctionEngine, order: str, kind: str, says: str
) -> None:
    outcomes = obeying(obedient, "", order, "")
    assert refusal(outcomes[1]).kind == kind
    assert says in refusal(outcomes[1]).message
    assert columns(outcomes[0]) == {"v": 0}
    assert columns(outcomes[2]) == {"v": 2}


@pytest.mark.parametrize(
    "order",
    [
        "another type",
        "half a character",
        "half a character as a name",
        "numpy",
        "a table of numpy",
        "nested",
        "a date",
    ],
)
def test_what_is_an_answer_comes_back_beside_any_other(
    obedient: FunctionEngine, order: str
) -> None:
    outcomes = obeying(obedient, "", order, "", order)
    assert columns(outcomes[1]).keys() == columns(outcomes[3]).keys() >= {"v"}
    assert columns(outcomes[0]) == {"v": 0}
    assert columns(outcomes[2]) == {"v": 2}


# ---------------------------------------------------------------- hosts that end


@pytest.mark.parametrize(
    ("order", "settings", "says"),
    [
        ("kill", {}, "was ended by SIGKILL"),
        pytest.param("leave", {}, "ended with exit code 3", marks=pytest.mark.slow),
        pytest.param(
            "hang", {"call_timeout_seconds": 1}, "took more than 1 s", marks=pytest.mark.slow
        ),
        pytest.param(
            "keep the lock",
            {"call_timeout_seconds": 1},
            "took more than 1 s",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "leak",
            {"function_memory_bytes": 400 * MIB},
            "and the limit is 419,430,400",
            marks=pytest.mark.slow,
        ),
        pytest.param("close everything", {}, "did not come back", marks=pytest.mark.slow),
        pytest.param("speak out of turn", {}, "did not come back", marks=pytest.mark.slow),
    ],
)
def test_a_row_that_ends_its_host_fails_alone_and_the_next_batch_is_served(
    host: Host, order: str, settings: dict[str, Any], says: str
) -> None:
    engine = host(**settings)
    outcomes = obeying(engine, "", order, "", "")
    assert refusal(outcomes[1]).kind is RowErrorKind.ENGINE_DIED
    assert says in refusal(outcomes[1]).message
    assert [columns(outcomes[row])["v"] for row in (0, 2, 3)] == [0, 2, 3]
    assert columns(obeying(engine, "")[0]) == {"v": 0}
    assert engine.stalled_seconds() == 0


@pytest.mark.slow
def test_a_hang_of_a_call_is_bounded_by_the_time_of_its_rows(host: Host) -> None:
    engine = host()
    rows = [{"do": "hang", "n": 0}, {"do": "", "n": 1}]
    outcomes = outcomes_of(engine, rows, row_timeout_seconds=0.5)
    assert "took more than 0.5 s" in refusal(outcomes[0]).message
    assert columns(outcomes[1]) == {"v": 1}


def stopped_while_it_is_called(engine: FunctionEngine, row: dict[str, Any]) -> dict[int, Outcome]:
    """The outcomes of a batch of one row that is stopped while the function has the row."""
    found: dict[int, Outcome] = {}
    work = work_of([row], found.__setitem__)
    running = engine.start(work)
    wait_until(lambda: vars(engine.host)["_left"] < math.inf, what="the call")
    work.stop()
    running.result(60)
    return found


def test_a_call_that_nobody_wants_any_more_ends_its_host_and_the_next_batch_is_served(
    host: Host,
) -> None:
    engine = host()
    assert stopped_while_it_is_called(engine, {"do": "hang", "n": 0}) == {}
    assert columns(obeying(engine, "")[0]) == {"v": 0}


def test_a_call_that_ends_soon_after_its_batch_was_stopped_gives_its_answers_and_costs_no_host(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_process, "UNWANTED_SECONDS", 60.0)
    engine = host("callables:square")
    found = stopped_while_it_is_called(engine, {"n": 3, "seconds": 0.5})
    assert found == {0: Answer({"power": 9})}
    assert not engine.host.is_over


def test_a_process_that_is_started_again_from_changed_files_answers_nothing_for_the_version_before(
    tmp_path: Path,
) -> None:
    code = tmp_path / "moving.py"
    code.write_text(
        "import os\ndef f(rows):\n    if rows[0]['n']: os._exit(3)\n    return [{'v': 1}] * len(rows)\n"
    )
    engine = hosted("moving:f", None, tmp_path)
    try:
        assert columns(outcomes_of(engine, [{"n": 0}])[0]) == {"v": 1}
        code.write_text("def f(rows):\n    return [{'v': 2}] * len(rows)\n")
        found: dict[int, Outcome] = {}
        with pytest.raises(EngineGone, match="code changed"):
            engine.start(work_of([{"n": 1}], found.__setitem__)).result(60)
        with pytest.raises(EngineGone, match="code changed"):
            engine.start(work_of([{"n": 0}], found.__setitem__)).result(60)
        assert found == {}
    finally:
        engine.close()


def test_memory_is_what_lies_in_ram_and_not_address_space(host: Host) -> None:
    engine = host(function_memory_bytes=400 * MIB)
    assert columns(obeying(engine, "reserve")[0]) == {"v": 0}
    assert not engine.host.is_over


@pytest.mark.slow
def test_the_set_up_of_a_class_has_no_time_of_a_call_neither_first_nor_again(host: Host) -> None:
    engine = host("callables:Slow", call_timeout_seconds=0.5)
    assert columns(obeying(engine, "")[0]) == {"v": 0}
    outcomes = obeying(engine, "hang", "")
    assert "took more than 0.5 s" in refusal(outcomes[0]).message
    assert columns(outcomes[1]) == {"v": 1}


@pytest.mark.slow
def test_a_leak_over_many_calls_costs_processes_and_no_row(host: Host) -> None:
    engine = host("callables:leaky", function_memory_bytes=400 * MIB)
    pids = [columns(outcomes_of(engine, [{"n": n}])[0])["pid"] for n in range(12)]
    assert 2 <= len(set(pids)) <= 6
    assert os.getpid() not in pids


def test_a_host_that_was_killed_while_it_was_idle_costs_no_row(host: Host) -> None:
    engine = host("callables:leaky")
    pid = columns(outcomes_of(engine, [{"n": 0}])[0])["pid"]
    psutil.Process(pid).kill()
    wait_until(lambda: engine.host.is_over, what="the look at the host")
    outcomes = outcomes_of(engine, [{"n": 1}])
    assert columns(outcomes[0])["pid"] != pid


def test_a_host_stays_at_the_sigterm_that_a_batch_system_sends_to_all_processes(host: Host) -> None:
    engine = host("callables:leaky")
    pid = columns(outcomes_of(engine, [{"n": 0}])[0])["pid"]
    psutil.Process(pid).terminate()
    assert columns(outcomes_of(engine, [{"n": 1}])[0])["pid"] == pid


def test_a_process_that_a_function_forks_ends_by_sigterm_wherever_it_is(
    host: Host, tmp_path: Path
) -> None:
    """Also in code that is not Python's, and before its first line."""
    (tmp_path / "forking.py").write_text(FORKING)
    outcomes = outcomes_of(host("forking:f", None, tmp_path), [{"n": 0}])
    assert columns(outcomes[0]) == {"default": True, "codes": [-15] * 20}


FORKING = """
import multiprocessing, signal, threading

def f(rows):
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    def tell():
        theirs.send(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    teller = fork.Process(target=tell)
    teller.start()
    teller.join()
    children = [fork.Process(target=threading.Event().wait) for _ in range(20)]
    for child in children:
        child.start()
        child.terminate()
    for child in children:
        child.join(60)
    return [{"default": ours.recv(), "codes": [child.exitcode for child in children]}]
"""


def test_a_closed_engine_ends_a_call_that_never_returns(host: Host) -> None:
    already = set(psutil.Process().children(recursive=True))
    engine = host("callables:obey")
    before = set(psutil.Process().children(recursive=True)) - already
    running = engine.start(work_of([{"do": "hang", "n": 0}]))
    wait_until(running.running, what="the call")
    engine.close()
    running.result(60)
    assert not any(map(is_alive, before))


CHILD = """
import sys
import time
sys.path.insert(0, {repository!r})
from tests.support.functions import hosted, outcomes_of
engine = hosted("callables:leaky")
print(outcomes_of(engine, [dict(n=0)])[0].columns["pid"], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_no_host_outlives_its_child() -> None:
    program = CHILD.format(repository=str(Path(__file__).parents[2]))
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        process = psutil.Process(int(child.stdout.readline()))
        child.kill()
    wait_until(lambda: not is_alive(process), what="the end of the host")


# ---------------------------------------------------------------- what a function gets


def test_a_function_gets_no_secret_and_what_its_operator_names(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", "postgresql://nightshift:secret@here/ledger")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("WANTED", "yes")
    found = columns(outcomes_of(host("callables:who", function_env=("WANTED",)), [{"n": 0}])[0])
    assert not any("secret" in line or "NIGHTSHIFT" in line for line in found["environment"])
    assert {"WANTED=yes", "LC_TIME=C"} <= set(found["environment"])
    assert found["ours"] == []


def test_a_function_may_print_and_read(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    engine = host("callables:who")
    assert columns(outcomes_of(engine, [{"n": 0}])[0])["read"] == ""
    engine.close()
    said = capfd.readouterr()
    assert "a line of the function\n" in said.out
    assert "a second line\n" in said.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_rules_a.py").write_text("def f(rows):\n    return rows\nnumber = 7\n")
    (tmp_path / "my_rules_b.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "my_rules_c.py").write_text("import os\nos._exit(7)\n")
    (tmp_path / "json.py").write_text("def f(rows):\n    return rows\n")
    (tmp_path / "numpy.py").write_text("raise ImportError('not this one')\n")
    (tmp_path / "yaml.py").write_text("mine = 5\n")
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("mine = 6\n")
    (tmp_path / "my_rules_d.py").write_text(
        "import common, numpy, yaml\n"
        "def f(rows):\n"
        "    return [{'found': yaml.mine * common.mine * int(numpy.int8(1))} for _ in rows]\n"
    )
    return tmp_path


def test_the_folders_of_a_user_come_first_and_take_nothing_from_the_host(
    host: Host, folder: Path
) -> None:
    engine = host("my_rules_d:f", None, folder)
    assert outcomes_of(engine, [{"n": 0}]) == {0: Answer({"found": 30})}


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("my_rules_a:g", {}, "'my_rules_a' has no 'g'"),
        ("my_rules_a:number", {}, "is not callable"),
        ("my_rules_a:f", {"start": 1}, "for a class, and 'my_rules_a:f' is a function"),
        ("my_rules_b:f", {}, "'my_rules_b:f' cannot be imported: ModuleNotFoundError"),
        ("my_rules_c:f", {}, "cannot be loaded in its process: it ended with exit code 7"),
        ("nowhere_at_all:f", {}, "cannot be imported"),
        ("json:f", {}, "rename yours"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(
    host: Host, folder: Path, name: str, args: dict[str, Any], says: str
) -> None:
    before = psutil.Process().children()
    with pytest.raises(EngineLoadFailed, match=says):
        host(name, args, folder)
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("code", "concern"),
    [
        ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "machine"),
        (
            "class f:\n def __init__(self):\n  raise OSError(28, 'No space left on device')",
            "machine",
        ),
        ("class f:\n def __init__(self):\n  raise ValueError('a wrong model')", "job"),
        ("import no_such_module_at_all", "worker"),
    ],
)
def test_an_error_at_import_or_set_up_concerns_whom_it_would_concern_in_any_engine(
    host: Host, tmp_path: Path, code: str, concern: str
) -> None:
    (tmp_path / "my_rules_e.py").write_text(code)
    with pytest.raises(EngineLoadFailed) as failed:
        host("my_rules_e:f", None, tmp_path)
    assert case_of(failed.value).concern == concern


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("callables:Counter", {}, "cannot be made with engine.args: TypeError"),
        ("callables:Counter", {"start": 1, "stop": 2}, "unexpected keyword argument 'stop'"),
        ("callables:Silent", {}, "is not callable"),
    ],
)
def test_a_class_that_cannot_be_made_is_one_sentence(
    host: Host, name: str, args: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineLoadFailed, match=says):
        host(name, args)


@pytest.mark.slow
def test_a_class_is_made_once_in_each_process_and_called_for_each_batch(host: Host) -> None:
    engine = host("callables:Counter", {"start": 5, "step": 2})
    found = [columns(outcome) for _ in range(2) for outcome in obeying(engine, "", "").values()]
    assert found == [{"n": n, "made": 1} for n in (5, 7, 9, 11)]
    assert refusal(obeying(engine, "kill")[0]).kind is RowErrorKind.ENGINE_DIED
    assert columns(obeying(engine, "")[0]) == {"n": 5, "made": 1}


def test_the_code_of_a_function_is_what_it_imported_below_its_folder_without_what_is_installed_there(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "words.py").write_text("louder = str.upper\n")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "own.py").write_text(
        "import json\nimport numpy\nfrom pkg import words\ndef run(rows):\n    return rows\n"
    )
    engine = host("own:run", None, tmp_path, Path(sys.prefix).parent)
    assert sorted(engine.code) == ["own.py", "pkg/words.py"]
    assert engine.code["own.py"] == hashlib.sha256((tmp_path / "own.py").read_bytes()).hexdigest()


def test_the_code_of_a_function_outside_its_folders_is_its_own_package(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PYTHONPATH or installed; the ledger had no version of such code, and rows of two versions looked alike."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    (elsewhere / "team").mkdir(parents=True)
    folder.mkdir()
    (elsewhere / "team" / "__init__.py").write_text("")
    (elsewhere / "team" / "words.py").write_text("louder = str.upper\n")
    (elsewhere / "other.py").write_text("")
    (elsewhere / "team" / "own.py").write_text(
        "import other\nfrom team import words\ndef run(rows):\n    return rows\n"
    )
    (elsewhere / "alone.py").write_text("def run(rows):\n    return rows\n")
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    engine = host("team.own:run", None, folder)
    assert sorted(engine.code) == ["team/__init__.py", "team/own.py", "team/words.py"]
    own = hashlib.sha256((elsewhere / "alone.py").read_bytes()).hexdigest()
    assert host("alone:run", None, folder).code == {"alone.py": own}


FILLS_A_TABLE = """
import time
from pathlib import Path

HERE = Path(__file__).parent

def note(word):
    with (HERE / "table").open("a") as table:
        table.write(word + chr(10))

note("begins")
while not (HERE / "go").exists():
    time.sleep(0.01)
note("ends")
LINES = (HERE / "table").read_text().split()

def f(rows):
    return [{"lines": LINES} for _ in rows]
"""


def waits_for_lock(folder: Path) -> bool:
    """Whether a process waits for the lock of a folder, as the kernel lists it."""
    inode = f":{folder.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and "FLOCK" in line and inode in line for line in lines)


def test_processes_import_the_code_of_a_user_one_after_the_other(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "my_table.py").write_text(FILLS_A_TABLE)
    table = tmp_path / "table"
    spec = FunctionEngineSpec(backend="function", callable="my_table:f")
    settings = Settings(allowed_modules=("my_table",), callable_paths=(str(tmp_path),))
    with CallableCheck(spec, settings, 60) as check, ThreadPoolExecutor(1) as threads:
        wait_until(table.exists, what="the import of the check")
        loading = threads.submit(host, "my_table:f", None, tmp_path)
        # The second process either waits for the first, or imports the module beside it.
        wait_until(
            lambda: waits_for_lock(tmp_path) or table.read_text().count("begins") == 2,
            what="the second process",
        )
        (tmp_path / "go").touch()
        engine = loading.result(60)
        check.result(print)
    lines = ["begins", "ends", "begins", "ends"]
    assert outcomes_of(engine, [{"n": 0}]) == {0: Answer({"lines": lines})}
