"""Reapers finish several jobs at once, each job by one of them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from nightshift.common import failpoints
from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger, holds
from nightshift.common.ledger.holds import Kind
from nightshift.common.settings import Settings
from nightshift.producer.reaper import loop
from nightshift.producer.verify.verify import verify
from tests.integration.test_look import Work
from tests.support.fleet import wait_until


class Gate:
    """Holds up the first finish that comes to `FINISHING`, until it is opened."""

    def __init__(self) -> None:
        self.come: list[int] = []
        self.opened = threading.Event()

    def __call__(self, moment: Moment) -> None:
        if moment is Moment.FINISHING:
            self.come.append(threading.get_ident())
            if len(self.come) == 1:
                assert self.opened.wait(120)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(failpoints, "observer", gate)
    return gate


@contextmanager
def reapers(*ledgers: Ledger) -> Iterator[None]:
    """Whole reapers at work, as threads of this process."""
    stop = threading.Event()
    settings = Settings(dispatch_seconds=0.05)
    with ThreadPoolExecutor(len(ledgers)) as threads:
        running = [
            threads.submit(loop.run, ledger, settings, stop, delete=lambda _: None)
            for ledger in ledgers
        ]
        try:
            yield
        finally:
            stop.set()
    for reaper in running:
        reaper.result(60)


def answered(ledger: Ledger, folder: Path, name: str) -> Work:
    """A job whose batches are all done, with its parts on disk."""
    (folder / name).mkdir()
    work = Work(ledger, folder / name, name=name)
    for lease in work.claim():
        work.commit(lease)
    return work


def test_a_job_whose_finish_takes_long_holds_up_no_other(
    ledger: Ledger, tmp_path: Path, gate: Gate
) -> None:
    works = [answered(ledger, tmp_path, f"job-{number}") for number in range(3)]

    def closed() -> int:
        return sum(work.job.closed_at is not None for work in works)

    with reapers(ledger):
        wait_until(lambda: closed() == len(works) - 1, what="the other jobs")
        gate.opened.set()
        wait_until(lambda: closed() == len(works), what="the slow job")
    assert len(gate.come) == len(works), "each job is finished once"
    for work in works:
        assert verify(ledger, work.job) == []


def test_two_reapers_never_finish_the_same_job_however_long_it_takes(
    second_ledger: Callable[[], Ledger],
    tmp_path: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holds, "SECONDS", {Kind.FINISH: 1.0})
    ledger, other = second_ledger(), second_ledger()
    work = answered(ledger, tmp_path, "large")
    held: set[object] = set()

    def is_kept() -> bool:
        with ledger.transaction() as connection:
            statement = "SELECT holder, until FROM holds WHERE until > now()"
            held.update(tuple(row) for row in connection.exec_driver_sql(statement))
        return len(held) >= 5

    with reapers(ledger, other):
        wait_until(is_kept, what="the job to be kept over several times of holding")
        gate.opened.set()
        wait_until(lambda: work.job.closed_at is not None, what="the end of the job")
    assert len({finisher for finisher, _ in held}) == 1  # type: ignore[misc]
    assert len(gate.come) == 1
    assert verify(ledger, work.job) == []
