"""Children of one queue share what is left of it, though each could hold all of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nightshift.common import storage
from nightshift.common.errors import StorageUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import dispatch
from nightshift.common.ledger.batches.records import Claimant, Lease
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.producer.submit.submit import submit
from nightshift.worker import runner
from nightshift.worker.engines.function.host import Rows
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.runner import EMPTY_PAUSES_SECONDS, Runner
from tests.support.child import child_of
from tests.support.fleet import function_spec, wait_until, write_rows
from tests.support.functions import engine_of

NAMES = ("one", "two")


class Fleet:
    """Two ready children in this process; their engine answers once `go` is set."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.go = threading.Event()
        self._ledger = ledger
        write_rows(folder / "in", [("a.parquet", 40)])
        data = function_spec("shared", folder / "in", folder / "out", batch={"rows": 5})
        self._spec = parse_spec(data, "test")
        self._job = submit(ledger, self._spec, Settings()).job_id
        self.children = {name: self._child(name) for name in NAMES}

    def _child(self, name: str) -> Runner:
        child = workers.Child(name, "s", "default", 0, "here", 1, self._spec.engine_key)
        with self._ledger.transaction() as connection:
            workers.register(connection, child)
            workers.ready(connection, child, workers.LoadedEngine("function", "1", 128))
        who = Claimant(name, "default", child.engine_key, "function", "1")
        engine = engine_of(self._shout, "rules:shout")
        return Runner(child_of(who, self._ledger, engine))

    def _shout(self, rows: Rows) -> Rows:
        self.go.wait(60)
        return [{"loud": row["text"].upper()} for row in rows]

    def admit(self) -> None:
        with self._ledger.transaction() as connection:
            dispatch.admit(connection, self._job, 1000, dispatch.next_rank(connection))

    def wake(self, name: str) -> None:
        """As a message does."""
        threading.Thread(
            target=self.children[name].work, args=("message",), kwargs={"wait": True}
        ).start()

    def held(self, name: str) -> int:
        return len(self.children[name].window.held())

    def rows_done(self) -> int:
        with self._ledger.transaction() as connection:
            return int(jobs.progress(connection, self._job)["rows_done"])


@pytest.fixture
def fleet(ledger: Ledger, tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(ledger, tmp_path)
    with ExitStack() as stack:
        for child in found.children.values():
            stack.callback(child.drain, lambda: 30)
        stack.callback(found.go.set)
        yield found


def test_a_child_leaves_half_of_a_small_job_to_its_sibling(fleet: Fleet) -> None:
    fleet.admit()
    fleet.wake("one")
    wait_until(lambda: fleet.held("one"), what="the first claim")
    fleet.wake("two")
    wait_until(lambda: fleet.held("two") == 4, what="the second claim")
    assert fleet.held("one") == 4
    fleet.go.set()
    wait_until(lambda: fleet.rows_done() == 40, what="the last row")


def test_a_child_does_it_all_where_the_sibling_never_wakes(fleet: Fleet) -> None:
    fleet.admit()
    fleet.wake("one")
    wait_until(lambda: fleet.held("one") == 4, what="the first claim")
    fleet.go.set()
    wait_until(lambda: fleet.rows_done() == 40, what="the last row")


def test_a_share_grows_when_a_sibling_leaves(fleet: Fleet, ledger: Ledger) -> None:
    fleet.admit()
    fleet.wake("one")
    wait_until(lambda: fleet.held("one") == 4, what="the first claim")
    with ledger.transaction() as connection:
        workers.end(connection, "two", died=None)
    wait_until(lambda: fleet.held("one") == 8, what="the rest")


def test_a_child_claims_nothing_for_an_output_that_has_just_failed(
    fleet: Fleet, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claim of it once failed at once, and the child claimed the next batch."""
    write = storage.write_bytes

    def refuse(uri: str, data: Any, **how: Any) -> storage.Written:
        if ".proof-" in uri:
            raise StorageUnavailable(f"{uri} cannot be written: Permission denied")
        return write(uri, data, **how)

    fleet.admit()
    fleet.go.set()
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_bytes", refuse)
        assert fleet.children["one"].work("message", wait=True) == 4
        wait_until(lambda: not fleet.held("one"), what="the release")
        assert fleet.children["one"].work("message", wait=True) == 0
    fleet.children["two"].work("message", wait=True)
    wait_until(lambda: fleet.rows_done() == 20, what="what the sibling can have")
    with ledger.transaction() as connection:
        ended = connection.execute(text("SELECT outcome, count(*) FROM attempts GROUP BY 1"))
        assert {row.outcome: row.count for row in ended} == {"released": 4, "done": 4}


def test_a_hint_that_was_left_over_asks_once_and_new_work_is_found_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = fleet.children["one"]
    asked: list[int] = []
    claim = child._claim

    def count(woken: str) -> list[Lease] | None:
        asked.append(1)
        return claim(woken)

    monkeypatch.setattr(child, "_claim", count)
    monkeypatch.setattr(runner, "HINT_SECONDS", 60)
    assert child.work("message", wait=True) == 0
    assert len(asked) == 1 + len(EMPTY_PAUSES_SECONDS)
    asked.clear()
    assert child.work("message", wait=True) == 0
    assert len(asked) == 1
    fleet.admit()
    fleet.go.set()
    assert child.work("message", wait=True) == 8


def test_batches_for_which_no_thread_can_be_started_go_back_and_are_not_run_twice(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = fleet.children["one"]
    ran: list[int] = []
    threads, submit_to = child.threads, child.threads.submit

    def no_thread(run: Callable[..., None], group: list[HeldBatch]) -> None:
        # As ThreadPoolExecutor does it: what it cannot start a thread for stays in its queue.
        submit_to(run_later, group)
        raise RuntimeError("can't start new thread")

    def run_later(group: list[HeldBatch]) -> None:
        fleet.go.wait(60)
        ran.append(len(group))

    monkeypatch.setattr(threads, "submit", no_thread)
    fleet.admit()
    child.draining.set()
    assert child.work("poll", wait=False) > 0
    assert child.window.held() == []
    fleet.go.set()
    wait_until(lambda: ran, what="the thread that came late")
    assert set(ran) == {0}
    assert fleet.rows_done() == 0
