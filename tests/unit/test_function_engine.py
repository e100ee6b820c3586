"""The function engine over hosts of this process: isolation by halving, and how hosts are replaced."""

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from nightshift.common.errors import EngineEnded, EngineGone, EngineLoadFailed
from nightshift.common.settings import Settings
from nightshift.common.spec import FunctionEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.function.answers import Found
from nightshift.worker.engines.function.call_size import GROW_CALLS, CallSize
from nightshift.worker.engines.function.engine import MOST_DEATHS, FunctionEngine
from nightshift.worker.engines.function.host import Rows
from nightshift.worker.engines.function.host_process import HostDied
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal
from tests.support.functions import InProcess, engine_of, outcomes_of, work_of


def numbered(rows: int) -> Rows:
    return [{"n": number} for number in range(rows)]


def run(function: Callable[[Rows], Any], rows: int) -> dict[int, Outcome]:
    return outcomes_of(engine_of(function), numbered(rows))


def failed(outcomes: dict[int, Outcome]) -> list[int]:
    return sorted(
        position for position, outcome in outcomes.items() if isinstance(outcome, Refusal)
    )


def kinds(outcomes: dict[int, Outcome]) -> set[RowErrorKind]:
    return {outcome.kind for outcome in outcomes.values() if isinstance(outcome, Refusal)}


# ---------------------------------------------------------------- halving


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
    assert refusal.message == "rules:f raised ValueError: five"


def test_a_wrong_length_is_isolated_like_an_exception() -> None:
    outcomes = run(lambda rows: [row for row in rows if row["n"] != 2], 4)
    assert failed(outcomes) == [2]


@pytest.mark.parametrize("result", [None, "text", 7, {"a": 1}])
def test_a_result_that_is_no_list_fails_its_rows(result: object) -> None:
    assert failed(run(lambda _rows: result, 3)) == [0, 1, 2]


def test_an_item_that_is_no_dict_fails_its_row_only() -> None:
    assert failed(run(lambda rows: [{"a": 1}, 5, {"a": 2}], 3)) == [1]


def test_stopped_work_is_not_called() -> None:
    calls: list[Rows] = []
    work = work_of(numbered(1))
    work.stop()
    engine_of(calls.append).start(work).result()
    assert calls == []


def test_batches_are_called_one_after_the_other_in_their_order() -> None:
    seen: list[tuple[int, int]] = []

    def note(rows: Rows) -> Rows:
        seen.append((threading.get_ident(), rows[0]["n"]))
        return rows

    engine = engine_of(note)
    futures = [engine.start(work_of([{"n": at}])) for at in range(20)]
    for future in futures:
        future.result(60)
    assert [number for _, number in seen] == list(range(20))
    assert len({thread for thread, _ in seen} | {threading.get_ident()}) == 2


def test_a_closed_engine_cancels_what_waits() -> None:
    calling, go_on = threading.Event(), threading.Event()

    def slow(rows: Rows) -> Rows:
        calling.set()
        go_on.wait(60)
        return rows

    engine = engine_of(slow)
    first, second = (engine.start(work_of(numbered(1))) for _ in range(2))
    assert calling.wait(60)
    engine.close()
    assert second.cancelled()
    go_on.set()
    first.result(60)


def test_a_module_that_is_not_allowed_starts_no_host() -> None:
    spec = FunctionEngineSpec(backend="function", callable="rules:f")
    with pytest.raises(EngineLoadFailed, match="NIGHTSHIFT_ALLOWED_MODULES"):
        FunctionEngine.load(spec, Settings(allowed_modules=("other",)))


# ---------------------------------------------------------------- hosts that end


@dataclass
class Site:
    """Hosts that end as a test says, and the calls that they got."""

    ends: Callable[[list[int]], str | None]
    most_starts: int = 1000
    starts: int = 0
    calls: list[tuple[list[int], float]] = field(default_factory=list)
    unwanted: Callable[[], bool] = bool
    engine: FunctionEngine | None = None

    def start(self, seconds: float) -> "Mortal":
        self.starts += 1
        if self.starts > self.most_starts:
            raise EngineLoadFailed("there is no module any more")
        return Mortal(self)

    def run(self, rows: int, row_timeout_seconds: float = 600) -> dict[int, Outcome]:
        engine = FunctionEngine("rules:f", self.start)
        return outcomes_of(engine, numbered(rows), row_timeout_seconds)


@dataclass
class Mortal:
    """A host that answers each row with its number, until it ends."""

    site: Site
    is_over: bool = False
    row_seconds: float = 1e-6
    code: Mapping[str, str] = field(default_factory=dict)

    def call(
        self, rows: pa.Table, sizes: Sequence[int], seconds: float, unwanted: Callable[[], bool]
    ) -> list[Found]:
        assert not self.is_over
        numbers = rows.column("n").to_pylist()
        assert sum(sizes) == len(numbers)
        self.site.calls.append((numbers, seconds))
        self.site.unwanted = unwanted
        if (fault := self.site.ends(numbers)) is None:
            left = iter(numbers)
            return [[Answer({"v": next(left)}) for _ in range(size)] for size in sizes]
        self.is_over = True
        raise HostDied(fault, was_late=fault == "late")

    def close(self) -> None:
        self.is_over = True


def test_a_row_that_ends_its_host_is_found_and_the_others_are_answered() -> None:
    site = Site(lambda numbers: "killed" if 5 in numbers else None)
    outcomes = site.run(16)
    assert outcomes.pop(5) == Refusal(RowErrorKind.ENGINE_DIED, "rules:f did not come back: killed")
    assert outcomes == {number: Answer({"v": number}) for number in range(16) if number != 5}
    assert site.starts == 1 + 6  # 16, 8, 4, 2, and alone twice


def test_two_rows_that_end_their_hosts_are_found() -> None:
    site = Site(lambda numbers: "killed" if {3, 12} & set(numbers) else None)
    outcomes = site.run(16)
    assert failed(outcomes) == [3, 12]
    assert kinds(outcomes) == {RowErrorKind.ENGINE_DIED}


def test_a_single_row_that_is_late_is_not_called_again() -> None:
    site = Site(lambda numbers: "late" if 1 in numbers else None)
    assert failed(site.run(2)) == [1]
    assert [numbers for numbers, _ in site.calls] == [[0, 1], [0], [1]]


def test_a_host_that_ends_once_costs_no_row() -> None:
    ends = iter(["killed"])
    site = Site(lambda numbers: next(ends, None))
    assert site.run(1) == {0: Answer({"v": 0})}
    assert site.starts == 2


def test_rows_that_are_too_many_at_once_are_called_in_fitting_numbers_from_then_on() -> None:
    site = Site(lambda numbers: "killed" if len(numbers) > 4 else None)
    assert failed(site.run(32)) == []
    assert [len(numbers) for numbers, _ in site.calls] == [32, 16, 8, *[4] * 8]


def test_the_size_that_fits_is_known_to_the_next_batch_and_grows_after_many_calls() -> None:
    site = Site(lambda numbers: "killed" if len(numbers) > 4 else None)
    engine = FunctionEngine("rules:f", site.start)
    outcomes_of(engine, numbered(32))
    starts = site.starts
    while site.starts == starts:
        assert failed(outcomes_of(engine, numbered(32))) == []
    assert GROW_CALLS <= len(site.calls) <= GROW_CALLS + 20
    assert max(len(numbers) for numbers, _ in site.calls[11:]) == 8


@pytest.mark.parametrize(
    ("told", "most_rows"),
    [
        ([], math.inf),
        ([(256, True)] * 2 * GROW_CALLS, math.inf),
        ([(8, False)], 7),
        ([(8, False), (16, False)], 7),
        ([(8, False), *[(3, True)] * 2 * GROW_CALLS], 7),
        ([(8, False), *[(4, True)] * (GROW_CALLS - 1)], 7),
        ([(8, False), *[(4, True)] * GROW_CALLS], 14),
        ([(8, False), *[(4, True)] * GROW_CALLS, (8, False)], 7),
        ([(2, False)], 1),
    ],
)
def test_how_many_rows_a_call_may_have(told: list[tuple[int, bool]], most_rows: float) -> None:
    size = CallSize()
    for rows, fits in told:
        (size.fitted if fits else size.too_large)(rows)
    assert size.most_rows == most_rows


def leased_until_done(site: Site, rows: Rows) -> list[dict[int, Outcome]]:
    """The outcomes of a batch by number under one lease after the other, each over the rows that the
    earlier ones left.
    """
    engine, left = FunctionEngine("rules:f", site.start), rows
    leases: list[dict[int, Outcome]] = []
    while left:
        found = outcomes_of(engine, left)
        leases.append({left[position]["n"]: outcome for position, outcome in found.items()})
        left = [row for position, row in enumerate(left) if position not in found]
        assert found, "each lease finishes a row"
    return leases


def test_a_batch_in_which_every_row_ends_its_host_ends_and_each_lease_has_its_bound() -> None:
    site = Site(lambda numbers: "killed")
    leases = leased_until_done(site, numbered(256))
    outcomes = {number: outcome for lease in leases for number, outcome in lease.items()}
    assert failed(outcomes) == list(range(256))
    assert kinds(outcomes) == {RowErrorKind.ENGINE_DIED}
    assert site.starts <= MOST_DEATHS * len(leases) + 1
    assert len(leases) <= 256 / 8
    assert all([number] in (numbers for numbers, _ in site.calls) for number in outcomes)


@pytest.mark.parametrize("killers", [1, 4, 20])
def test_however_many_rows_end_their_hosts_no_other_row_has_an_error(killers: int) -> None:
    for seed in range(10):
        deadly = set(random.Random(seed).sample(range(256), killers))
        site = Site(lambda numbers, deadly=deadly: "killed" if deadly & set(numbers) else None)
        leases = leased_until_done(site, numbered(256))
        outcomes = {number: outcome for lease in leases for number, outcome in lease.items()}
        assert set(failed(outcomes)) == deadly
        assert len(outcomes) == 256
        assert site.starts <= MOST_DEATHS * len(leases) + 1


def test_a_host_that_ended_between_two_calls_is_replaced_and_blames_nobody() -> None:
    site = Site(lambda numbers: None)
    engine = FunctionEngine("rules:f", site.start)
    engine.host.close()
    assert failed(outcomes_of(engine, numbered(4))) == []
    assert site.starts == 2


def test_a_batch_that_was_stopped_says_nothing_of_the_size_of_calls() -> None:
    def ends(numbers: list[int]) -> str:
        if len(numbers) < 8:
            work.stop()
        return "killed"

    engine, work = FunctionEngine("rules:f", Site(ends).start), work_of(numbered(8))
    engine.start(work).result(60)
    assert engine._size.most_rows == math.inf


def test_a_host_that_was_ended_since_its_call_is_unwanted_blames_nobody() -> None:
    def ends(numbers: list[int]) -> str | None:
        if not site.unwanted():
            work.stop()
        return "nobody wants it" if site.unwanted() else None

    site, found = Site(ends), dict[int, Outcome]()
    engine = FunctionEngine("rules:f", site.start)
    work = work_of(numbered(8), found.__setitem__)
    engine.start(work).result(60)
    assert (found, len(site.calls)) == ({}, 1)
    site.ends = lambda numbers: None
    assert failed(outcomes_of(engine, numbered(8))) == []
    assert site.starts == 2


def test_an_engine_whose_host_cannot_be_started_again_is_gone_and_keeps_what_it_gave() -> None:
    site = Site(lambda numbers: "killed" if numbers[-1] == 3 else None, most_starts=2)
    engine, found = FunctionEngine("rules:f", site.start), dict[int, Outcome]()
    work = work_of(numbered(4), found.__setitem__)
    for batch, said in (
        (work, EngineEnded),
        (work_of(numbered(1)), EngineGone),
        (work_of(numbered(1)), EngineGone),
    ):
        with pytest.raises(EngineGone, match="there is no module any more") as caught:
            engine.start(batch).result(60)
        assert caught.type is said
    assert found == {0: Answer({"v": 0}), 1: Answer({"v": 1})}
    assert site.starts == 3


@pytest.mark.parametrize(
    ("call_timeout_seconds", "limits"),
    [(None, [40.0, 20.0]), (30.0, [30.0, 20.0]), (5.0, [5.0, 5.0])],
)
def test_a_call_has_the_time_of_its_rows_and_no_more_than_a_call_may_take(
    call_timeout_seconds: float | None, limits: list[float]
) -> None:
    site = Site(lambda numbers: None)
    engine = FunctionEngine("rules:f", site.start, call_timeout_seconds)
    for rows in (4, 2):
        outcomes_of(engine, numbered(rows), row_timeout_seconds=10)
    assert [seconds for _, seconds in site.calls] == limits
    assert engine.stalled_seconds() == 0


# ---------------------------------------------------------------- calls that share a message


def hold(engine: FunctionEngine, go_on: threading.Event) -> None:
    """Keeps the engine's thread busy, so that batches wait for it together."""
    engine._thread.submit(go_on.wait, 60)


def together(site: Site, sizes: Sequence[int]) -> list[dict[int, Outcome]]:
    """What becomes of batches that wait at the same time, of a function that was quick before."""
    engine = FunctionEngine("rules:f", site.start)
    site.engine, go_on = engine, threading.Event()
    hold(engine, go_on)
    found: list[dict[int, Outcome]] = [{} for _ in sizes]
    numbers = iter(range(sum(sizes)))
    futures = [
        engine.start(work_of([{"n": next(numbers)} for _ in range(size)], outcomes.__setitem__))
        for size, outcomes in zip(sizes, found, strict=True)
    ]
    go_on.set()
    for future in futures:
        future.result(60)
    return found


def test_small_batches_of_a_quick_function_share_a_message_and_keep_their_calls() -> None:
    site = Site(lambda numbers: None)
    found = together(site, [1, 2, 1])
    assert [list(outcomes.values()) for outcomes in found] == [
        [Answer({"v": 0})],
        [Answer({"v": 1}), Answer({"v": 2})],
        [Answer({"v": 3})],
    ]
    assert [numbers for numbers, _ in site.calls] == [[0, 1, 2, 3]]


def test_answers_of_a_shared_message_count_although_its_calls_are_too_large_by_now() -> None:
    def ends(numbers: list[int]) -> None:
        assert site.engine is not None
        site.engine._size.too_large(2)

    site = Site(ends)
    found = together(site, [2, 2])
    assert found == [
        {0: Answer({"v": 0}), 1: Answer({"v": 1})},
        {0: Answer({"v": 2}), 1: Answer({"v": 3})},
    ]
    assert len(site.calls) == 1


def test_a_batch_that_fills_a_message_is_called_by_itself() -> None:
    site = Site(lambda numbers: None)
    together(site, [64, 1])
    assert [len(numbers) for numbers, _ in site.calls] == [64, 1]


def test_the_end_of_a_host_is_looked_for_in_each_batch_by_itself() -> None:
    site = Site(lambda numbers: "killed" if 1 in numbers else None)
    found = together(site, [1, 2, 1])
    assert [failed(outcomes) for outcomes in found] == [[], [0], []]
    assert kinds(found[1]) == {RowErrorKind.ENGINE_DIED}
    assert [numbers for numbers, _ in site.calls][:3] == [[0, 1, 2, 3], [0], [1, 2]]


def test_the_end_of_a_shared_message_costs_one_host() -> None:
    site = Site(lambda numbers: "killed" if 5 in numbers else None)
    found = together(site, [1] * 6)
    assert [failed(outcomes) for outcomes in found] == [[], [], [], [], [], [0]]
    assert [len(numbers) for numbers, _ in site.calls] == [6, 1, 1, 1, 1, 1, 1, 1]


def test_a_shared_message_is_wanted_until_the_last_of_its_batches_is_stopped() -> None:
    works = [work_of(numbered(1)) for _ in range(2)]
    seen: list[bool] = []

    def ends(numbers: list[int]) -> None:
        for work in works:
            seen.append(site.unwanted())
            work.stop()
        seen.append(site.unwanted())

    site, go_on = Site(ends), threading.Event()
    engine = FunctionEngine("rules:f", site.start)
    hold(engine, go_on)
    futures = [engine.start(work) for work in works]
    go_on.set()
    for future in futures:
        future.result(60)
    assert seen == [False, False, True]


def test_each_call_of_a_message_has_its_own_problem() -> None:
    def picky(rows: Rows) -> Rows:
        if rows[0]["n"] == 1:
            raise ValueError("one")
        return rows

    reply = InProcess(picky, "f").call(pa.table({"n": [0, 1, 2]}), [1, 1, 1], 600, lambda: False)
    assert reply == [[Answer({"n": 0})], "f raised ValueError: one", [Answer({"n": 2})]]
