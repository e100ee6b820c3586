"""What `make test-hammer` runs, under which load, and what it remembers."""

from collections import Counter, defaultdict
from pathlib import Path

from tests import hammer
from tests.hammer import LOADS, Found, Part, failed, files_of_tests, parts


def test_every_file_runs_three_times_and_a_restless_one_ten_times_more_under_changing_load() -> (
    None
):
    runs: Counter[tuple[str, str]] = Counter()
    loads: dict[str, set[str]] = defaultdict(set)
    for part in parts(files_of_tests()):
        what = part.name.partition(",")[0]
        for file in part.files:
            runs[what, file] += 1
            loads[file].add(part.load.name)
    files = [str(file.relative_to(hammer.HOME)) for file in files_of_tests()]
    assert {runs["all tests", file] for file in files} == {3}
    assert {runs["restless tests", file] for file in files} == {0, 10}
    assert runs["restless tests", "tests/faults/test_preempt.py"] == 10
    assert runs["restless tests", "tests/unit/test_text.py"] == 0
    for file in files:
        wanted = len(LOADS) if runs["restless tests", file] else 3
        assert len(loads[file]) == wanted, file
    names = [part.name for part in parts(files_of_tests())]
    assert len(set(names)) == len(names)


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
