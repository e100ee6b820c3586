"""The function engine: isolation by halving, and which modules it loads."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import EngineLoadFailed
from nightshift.common.spec import FunctionEngineSpec, FunctionTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.function import FunctionEngine
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request, Work

Rows = list[dict[str, Any]]
TASK = FunctionTask(kind="function")


def run(function: Callable[[Rows], Any], rows: int) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    requests = [Request(index, row={"n": index}) for index in range(rows)]
    work = Work(TASK, requests, 600, found.__setitem__)
    FunctionEngine(function, "rules:f").start(work).result()
    return found


def failed(outcomes: dict[int, Outcome]) -> list[int]:
    return sorted(
        position for position, outcome in outcomes.items() if isinstance(outcome, Refusal)
    )


def test_every_row_has_its_own_answer_in_one_call() -> None:
    calls: list[int] = []

    def double(rows: Rows) -> Rows:
        calls.append(len(rows))
        return [{"twice": row["n"] * 2} for row in rows]

    outcomes = run(double, 5)
    assert calls == [5]
    assert outcomes[4] == Answer({"twice": 8})


def test_a_row_that_raises_fails_alone() -> None:
    def picky(rows: Rows) -> Rows:
        if any(row["n"] == 5 for row in rows):
            raise ValueError("five")
        return rows

    outcomes = run(picky, 16)
    assert failed(outcomes) == [5]
    assert len(outcomes) == 16
    refusal = outcomes[5]
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RowErrorKind.FUNCTION_ERROR
    assert "five" in refusal.message


def test_a_wrong_length_is_isolated_like_an_exception() -> None:
    outcomes = run(lambda rows: [row for row in rows if row["n"] != 2], 4)
    assert failed(outcomes) == [2]


@pytest.mark.parametrize("result", [None, "text", 7, {"a": 1}])
def test_a_result_that_is_no_list_fails_its_rows(result: object) -> None:
    assert failed(run(lambda _rows: result, 3)) == [0, 1, 2]


def test_an_item_that_is_no_dict_fails_its_row_only() -> None:
    assert failed(run(lambda rows: [{"a": 1}, 5, {"a": 2}], 3)) == [1]


def test_stopped_work_is_not_called() -> None:
    work = Work(TASK, [Request(0, row={})], 600, pytest.fail)
    work.stop()
    FunctionEngine(pytest.fail, "rules:f").start(work).result()


def test_calls_come_from_one_thread_in_the_order_of_their_batches() -> None:
    seen: list[tuple[int, int]] = []

    def note(rows: Rows) -> Rows:
        seen.append((threading.get_ident(), rows[0]["n"]))
        return rows

    engine = FunctionEngine(note, "rules:f")
    futures = [
        engine.start(Work(TASK, [Request(at, row={"n": at})], 600, lambda *_: None))
        for at in range(20)
    ]
    for future in futures:
        future.result(60)
    assert [number for _, number in seen] == list(range(20))
    assert len({thread for thread, _ in seen} | {threading.get_ident()}) == 2


def test_a_closed_engine_ends_its_call_and_cancels_what_waits() -> None:
    calling, go_on = threading.Event(), threading.Event()

    def slow(rows: Rows) -> Rows:
        calling.set()
        go_on.wait(60)
        return rows

    engine = FunctionEngine(slow, "rules:f")
    first, second = (
        engine.start(Work(TASK, [Request(0, row={})], 600, lambda *_: None)) for _ in range(2)
    )
    assert calling.wait(60)
    engine.close()
    assert second.cancelled()
    go_on.set()
    first.result(60)


def test_a_call_over_its_time_is_stalled_and_an_idle_engine_is_not() -> None:
    seen: list[float] = []
    engine = FunctionEngine(lambda rows: seen.append(engine.stalled_seconds()) or rows, "f")
    requests = [Request(0, row={})]
    engine.start(Work(TASK, requests, -1.0, lambda *_: None)).result()
    engine.start(Work(TASK, requests, 60.0, lambda *_: None)).result()
    assert seen[0] > 0
    assert seen[1] == 0
    assert engine.stalled_seconds() == 0


CLASSES = """
import threading

class Counter:
    made = 0

    def __init__(self, start, step=1):
        Counter.made += 1
        self.next, self.step, self.thread = start, step, threading.get_ident()

    def __call__(self, rows):
        assert threading.get_ident() == self.thread
        found = [{"n": self.next + self.step * at} for at in range(len(rows))]
        self.next += self.step * len(rows)
        return found

class Silent:
    pass
"""


def load(
    callable_name: str, allowed: list[str], folder: Path, args: dict[str, Any] | None = None
) -> FunctionEngine:
    spec = FunctionEngineSpec(backend="function", callable=callable_name, args=args or {})
    return FunctionEngine.load(spec, allowed, [folder])


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_rules_a.py").write_text("def f(rows):\n    return rows\nnumber = 7\n")
    (tmp_path / "my_rules_b.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "my_rules_c.py").write_text(CLASSES)
    (tmp_path / "json.py").write_text("def f(rows):\n    return rows\n")
    return tmp_path


def test_an_allowed_module_is_loaded_from_the_users_folder(rules: Path) -> None:
    assert load("my_rules_a:f", ["my_rules_a"], rules).name == "function"


@pytest.mark.parametrize(
    ("callable_name", "allowed", "says"),
    [
        ("os:system", ["my_rules_a"], "not allowed"),
        ("my_rules_a:g", ["my_rules_a"], "has no 'g'"),
        ("my_rules_a:number", ["my_rules_a"], "not callable"),
        ("my_rules_b:f", ["my_rules_b"], "no_such_module_at_all"),
        ("nowhere_at_all:f", ["nowhere_at_all"], "cannot be imported"),
        ("json:f", ["json"], "rename yours"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(
    rules: Path, callable_name: str, allowed: list[str], says: str
) -> None:
    with pytest.raises(EngineLoadFailed, match=says):
        load(callable_name, allowed, rules)


def test_a_class_is_made_once_with_its_arguments_and_called_for_each_batch(rules: Path) -> None:
    engine = load("my_rules_c:Counter", ["my_rules_c"], rules, {"start": 5, "step": 2})
    found: dict[int, Outcome] = {}
    for first in (0, 2):
        requests = [Request(first + at, row={}) for at in range(2)]
        work = Work(
            TASK, requests, 600, lambda at, out, first=first: found.update({first + at: out})
        )
        engine.start(work).result()
    assert [found[at] for at in range(4)] == [Answer({"n": n}) for n in (5, 7, 9, 11)]
    assert sys.modules["my_rules_c"].Counter.made == 1
    engine.close()


@pytest.mark.parametrize(
    ("callable_name", "args", "says"),
    [
        ("my_rules_c:Counter", {}, "cannot be made with engine.args: TypeError"),
        ("my_rules_c:Counter", {"start": 1, "stop": 2}, "unexpected keyword argument 'stop'"),
        ("my_rules_c:Silent", {}, "is not callable"),
        ("my_rules_a:f", {"start": 1}, "for a class, and 'my_rules_a:f' is a function"),
    ],
)
def test_a_class_that_cannot_be_made_is_one_sentence(
    rules: Path, callable_name: str, args: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineLoadFailed, match=says):
        load(callable_name, ["my_rules_a", "my_rules_c"], rules, args)
