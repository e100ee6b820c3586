"""What every engine promises to the runner; each engine's own test class says how it is asked."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError

import numpy as np
import psutil
import pyarrow as pa
import pytest

from nightshift.common.spec import EmbedTask, Task
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Refusal, Request, Work
from tests.support.fleet import is_alive

LIMIT_SECONDS = 60.0


class Contract:
    """The promises. A subclass has `task`, `request`, `bad`, `slow`, and a fixture `engine` that all
    of its tests share, so that each finds it as the one before left it.
    """

    task: Task

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError

    def request(self, index: int) -> Request:
        """A row that has an answer, the same each time."""
        raise NotImplementedError

    def bad(self, index: int) -> Request:
        """A row that the engine refuses."""
        raise NotImplementedError

    def slow(self, index: int) -> tuple[Task, Request]:
        """A row that takes long, some of which can be stopped."""
        return self.task, self.request(index)

    def rows(self, requests: Sequence[Request]) -> pa.Table | None:
        """The rows of the requests, for an engine that gets rows."""
        return None

    def same(self, one: Answer, other: Answer) -> bool:
        """Whether two answers to the same row are the same."""
        return one == other

    def test_it_says_what_it_is(self, engine: Engine) -> None:
        assert engine.name
        assert engine.version
        assert engine.concurrency >= 1
        assert engine.revision is None or engine.revision

    def test_each_row_has_one_outcome_at_its_own_position(self, engine: Engine) -> None:
        found = self._answers(engine, range(40))
        turned = self._answers(engine, list(reversed(range(40))))
        assert all(self.same(found[row], turned[row]) for row in range(40))

    def test_a_bad_row_is_data_and_its_neighbours_are_answered(self, engine: Engine) -> None:
        alone = self._answers(engine, range(3))
        requests = [self.request(0), self.bad(1), self.request(2)]
        outcomes = ask(engine, self.task, requests, self.rows(requests))
        refused = outcomes[1]
        assert isinstance(refused, Refusal)
        assert refused.kind
        assert refused.message
        for row in (0, 2):
            answer = outcomes[row]
            assert isinstance(answer, Answer)
            assert self.same(answer, alone[row])

    def test_a_batch_without_rows_is_done(self, engine: Engine) -> None:
        assert ask(engine, self.task, [], self.rows([])) == {}

    def test_batches_of_several_threads_do_not_mix(self, engine: Engine) -> None:
        wanted = self._answers(engine, range(24))
        wrong: list[int] = []

        def some(rows: Sequence[int]) -> None:
            found = self._answers(engine, rows)
            wrong.extend(row for row in rows if not self.same(found[row], wanted[row]))

        threads = [
            threading.Thread(target=some, args=(range(start, 24, 4),), daemon=True)
            for start in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []

    def test_a_stop_ends_the_work_and_the_next_batch_is_served(self, engine: Engine) -> None:
        asked = [self.slow(index) for index in range(200)]
        outcomes: dict[int, Outcome] = {}
        requests = [each for _, each in asked]
        rows = self.rows(requests)
        work = Work(asked[0][0], requests, 600, outcomes.__setitem__, rows=rows)
        future = engine.start(work)
        work.stop()
        with contextlib.suppress(CancelledError):
            future.result(LIMIT_SECONDS)
        assert len(self._answers(engine, range(3))) == 3

    def test_rows_that_are_withdrawn_leave_and_all_others_are_answered(
        self, engine: Engine
    ) -> None:
        # An arranged batch has its rows in another order than that of the dataset.
        requests = [self.request(index) for index in [*range(30, 60), *range(30)]]
        outcomes: dict[int, Outcome] = {}
        rows = self.rows(requests)
        work = Work(self.task, requests, 600, outcomes.__setitem__, rows=rows)
        future = engine.start(work)
        taken = set(work.take_back(20))
        future.result(LIMIT_SECONDS)
        positions = enumerate(requests)
        assert outcomes.keys() == {at for at, each in positions if each.row_index not in taken}
        assert len(self._answers(engine, range(3))) == 3

    def test_a_batch_that_was_stopped_before_it_started_costs_nothing(self, engine: Engine) -> None:
        outcomes: dict[int, Outcome] = {}
        task, request = self.slow(0)
        requests = [request] * 50
        work = Work(task, requests, 600, outcomes.__setitem__, rows=self.rows(requests))
        work.stop()
        with contextlib.suppress(CancelledError):
            engine.start(work).result(LIMIT_SECONDS)
        assert len(outcomes) < 50

    def test_idle_it_is_not_stalled(self, engine: Engine) -> None:
        self._answers(engine, range(2))
        ends = time.monotonic() + LIMIT_SECONDS
        while engine.stalled_seconds() and time.monotonic() < ends:
            time.sleep(0.05)
        assert engine.stalled_seconds() == 0

    def _answers(self, engine: Engine, rows: Sequence[int]) -> dict[int, Answer]:
        requests = [self.request(row) for row in rows]
        outcomes = ask(engine, self.task, requests, self.rows(requests))
        assert sorted(outcomes) == list(range(len(rows)))
        found = {rows[position]: outcome for position, outcome in outcomes.items()}
        refused = {row: each for row, each in found.items() if not isinstance(each, Answer)}
        assert not refused
        return {row: each for row, each in found.items() if isinstance(each, Answer)}


def lent(load: Callable[[], Engine]) -> Iterator[Engine]:
    """A loaded engine for a fixture; closed at the end, when nothing of its own may be left."""
    threads, children = _own_threads(), _children()
    engine = load()
    threads, children = _own_threads() - threads, _children() - children
    yield engine
    engine.close()
    ends = time.monotonic() + LIMIT_SECONDS
    while left := [*(threads & _own_threads()), *(children & _children())]:
        assert time.monotonic() < ends, f"the closed engine {engine.name} left {left}"
        time.sleep(0.05)


def _own_threads() -> set[threading.Thread]:
    names = ("engine-loop", "function", "images", "passes")
    return {each for each in threading.enumerate() if each.name.startswith(names)}


def _children() -> set[psutil.Process]:
    """Processes below this one, but for Python's own that watches over shared memory."""
    return {
        each
        for each in psutil.Process().children(recursive=True)
        if is_alive(each) and "resource_tracker" not in " ".join(each.cmdline())
    }


def ask(
    engine: Engine, task: Task, requests: Sequence[Request], rows: pa.Table | None = None
) -> dict[int, Outcome]:
    """Outcomes by position; fails where a position has two."""
    outcomes: dict[int, Outcome] = {}
    twice: list[int] = []
    lock = threading.Lock()

    def emit(position: int, outcome: Outcome) -> None:
        with lock:
            if position in outcomes:
                twice.append(position)
            outcomes[position] = outcome

    engine.start(Work(task, requests, 600, emit, rows=rows)).result(LIMIT_SECONDS)
    assert twice == []
    return outcomes


class Embeds(Contract):
    task = EmbedTask(kind="embed", text="{{ text }}")

    def request(self, index: int) -> Request:
        return Request(index, text=f"Row {index} is about {('cats', 'taxes', 'rain')[index % 3]}.")

    def bad(self, index: int) -> Request:
        return Request(index, text="word " * 5_000)

    def slow(self, index: int) -> tuple[Task, Request]:
        return self.task, Request(index, text=f"{index} " + "word " * 200)

    def same(self, one: Answer, other: Answer) -> bool:
        """Sums of floats depend on what else is in the pass, in the last digits."""
        both = (each.columns["embedding"] for each in (one, other))
        return bool(np.allclose(*both, atol=1e-5)) and one.prompt_tokens == other.prompt_tokens
