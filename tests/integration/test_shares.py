"""Children of one queue share what is left of it, though each could hold all of it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from common.ledger import Ledger, dispatch, jobs, workers
from common.ledger.batches import Claimant
from common.settings import Settings
from common.spec import parse_spec
from producer.submit import submit
from tests.integration.fleet import function_spec, wait_until, write_rows
from worker.engines.function import FunctionEngine, Rows
from worker.runner import Runner

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
            workers.ready(
                connection,
                child,
                engine="function",
                engine_version="1",
                revision=None,
                window_rows=128,
            )
        who = Claimant(name, "default", child.engine_key, "function", "1")
        engine = FunctionEngine(self._shout, "rules:shout")
        return Runner(who, self._ledger, engine, Settings(lease_seconds=600), lambda error: None)

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
            stack.callback(child.drain, 30)
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
