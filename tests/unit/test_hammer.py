"""What `make test-hammer` runs, under which load, and what it remembers."""

from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest

from tests import hammer
from tests.hammer import LOADS, Found, Part, failed, files_of_tests, parts, restless_tests
from tests.support.fleet import wait_until


@pytest.mark.slow
def test_every_test_runs_three_times_and_a_restless_one_ten_times_under_changing_load() -> None:
    runs: Counter[tuple[str, str]] = Counter()
    loads: dict[str, set[str]] = defaultdict(set)
    every = parts(files_of_tests())
    for part in every:
        what = part.name.partition(",")[0]
        for test in part.tests:
            runs[what, test] += 1
            loads[test].add(part.load.name)
    files = [str(file.relative_to(hammer.HOME)) for file in files_of_tests()]
    assert {runs["all tests", file] for file in files} == {3}
    restless = {test for what, test in runs if what == "restless tests"}
    assert {runs["restless tests", test] for test in restless} == {7}
    assert {len(loads[file]) for file in files} == {3}
    assert {len(loads[test]) for test in restless} == {len(LOADS)}
    assert {test.partition("::")[0] for test in restless} < set(files)
    assert len({part.name for part in every}) == len(every)


def test_a_test_is_restless_by_what_it_does_itself_or_by_what_it_uses_of_its_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "def ended(run):\n    run.kill()\n"
        "def fixture():\n    ended(1)\n"
        "def test_by_helper_of_helper(fixture):\n    assert fixture\n"
        "def test_itself():\n    wait_until(lambda: True)\n"
        "def test_calm():\n    assert True\n"
        "class TestAll:\n    def test_it(self):\n        ended(2)\n"
        "class TestCalm:\n    def test_it(self):\n        assert self\n"
    )
    assert restless_tests(file) == ["test_by_helper_of_helper", "test_itself", "TestAll"]


def test_a_part_that_was_red_runs_again_and_stays_in_the_list(tmp_path: Path) -> None:
    part = Part("all tests, round 1 of 3, part 1 of 12", LOADS[1], ("tests/unit/test_text.py",))
    log = tmp_path / "a.log"
    found = Found(tmp_path)
    found.note(part, ["tests/unit/test_text.py::test_it"], log)
    assert part.name not in found.green
    found.note(part, [], log)
    again = Found(tmp_path)
    again.read()
    assert part.name in again.green
    assert again.red == [
        {
            "test": "tests/unit/test_text.py::test_it",
            "part": part.name,
            "load": "two busy loops",
            "log": str(log),
        }
    ]


def test_what_was_red_is_read_from_what_pytest_says() -> None:
    said = "FAILED tests/conftest.py::test_b[c] - assert 1 == 2\nERROR tests/conftest.py::test_d\n2 failed\n"
    assert failed(said, 1) == ["tests/conftest.py::test_b[c]", "tests/conftest.py::test_d"]
    assert failed("3 passed", 0) == failed("no tests ran", 5) == []
    assert failed("Killed", 137) == ["(pytest ended with exit code 137)"]


@pytest.mark.slow
def test_no_process_of_a_part_outlives_it(tmp_path: Path) -> None:
    file, told = tmp_path / "test_it.py", tmp_path / "pid"
    file.write_text(
        "import pathlib, subprocess\n"
        "def test_it():\n"
        "    left = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"    pathlib.Path({str(told)!r}).write_text(str(left.pid))\n"
    )
    log = tmp_path / "log"
    assert hammer.run(Part("one", LOADS[0], (str(file),)), log, None) == 0, log.read_text()
    pid = int(told.read_text())

    def is_over() -> bool:
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    wait_until(is_over, what="the end of what the part left")
