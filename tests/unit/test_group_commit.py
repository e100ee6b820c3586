"""Group commit: one acts for all who came meanwhile, and everybody gets the own answer."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from nightshift.common import group_commit as module
from nightshift.common.group_commit import GroupCommit


class Held:
    """An action that waits for leave at each call and notes what it was given."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.began = threading.Semaphore(0)
        self.leave = threading.Semaphore(0)

    def __call__(self, requests: Sequence[int]) -> list[int]:
        self.groups.append(list(requests))
        self.began.release()
        assert self.leave.acquire(timeout=100)
        if -1 in requests:
            raise ValueError("refused")
        return [10 * request for request in requests]


def wait_for(commits: GroupCommit[int, int], waiting: int) -> None:
    """Until so many requests wait: they do so in the kernel, and nothing tells."""
    for _ in range(10_000):
        with commits._lock:
            if len(commits._waiting) == waiting:
                return
        threading.Event().wait(0.001)
    pytest.fail(f"{waiting} requests did not come")


def test_a_request_alone_is_acted_on_at_once_by_its_own_thread() -> None:
    threads: list[int] = []

    def act(requests: Sequence[str]) -> list[str]:
        threads.append(threading.get_ident())
        return [request.upper() for request in requests]

    commits = GroupCommit(act, most=32)
    assert commits.submit("one") == "ONE"
    assert commits.submit("two") == "TWO"
    assert threads == [threading.get_ident()] * 2


def test_those_who_come_meanwhile_go_next_in_groups_of_at_most_so_many() -> None:
    act = Held()
    commits = GroupCommit(act, most=3)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(commits.submit, 0)
        assert act.began.acquire(timeout=100)
        others = []
        for request in range(1, 6):
            others.append(threads.submit(commits.submit, request))
            wait_for(commits, request)
        for _ in range(3):
            act.leave.release()
        assert first.result(60) == 0
        assert [other.result(60) for other in others] == [10, 20, 30, 40, 50]
    assert act.groups == [[0], [1, 2, 3], [4, 5]]


def test_an_error_reaches_its_own_group_only_and_stops_nobody() -> None:
    act = Held()
    commits = GroupCommit(act, most=2)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(commits.submit, 0)
        assert act.began.acquire(timeout=100)
        others = []
        for place, request in enumerate((1, -1, 2), 1):
            others.append(threads.submit(commits.submit, request))
            wait_for(commits, place)
        for _ in range(3):
            act.leave.release()
        assert first.result(60) == 0
        for refused in others[:2]:
            with pytest.raises(ValueError, match="refused"):
                refused.result(60)
        assert others[2].result(60) == 20
    act.leave.release()
    assert commits.submit(7) == 70


def test_many_threads_get_each_their_own_answer() -> None:
    commits = GroupCommit(
        lambda requests: [(request, len(requests)) for request in requests], most=8
    )
    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(commits.submit, range(5000)))
    assert [request for request, _ in answers] == list(range(5000))
    assert max(size for _, size in answers) <= 8


class InterruptedAtOnce(Future[int | None]):
    """Ctrl-C comes before any answer."""

    def result(self, timeout: float | None = None) -> int | None:
        raise KeyboardInterrupt


class InterruptedWhenWoken(Future[int | None]):
    """Ctrl-C comes with the answer."""

    def result(self, timeout: float | None = None) -> int | None:
        super().result(timeout)
        raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", [InterruptedAtOnce, InterruptedWhenWoken])
def test_one_who_is_interrupted_while_it_waits_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, interrupted: type[Future[int | None]]
) -> None:
    act = Held()
    commits = GroupCommit(act, most=1)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(commits.submit, 0)
        assert act.began.acquire(timeout=100)
        came = threading.Event()

        def made() -> Future[int | None]:
            came.set()
            return interrupted()

        with monkeypatch.context() as patched:
            patched.setattr(module, "Future", made)
            gone = threads.submit(commits.submit, 1)
            assert came.wait(60)
        if interrupted is InterruptedAtOnce:
            assert isinstance(gone.exception(10), KeyboardInterrupt)
        else:
            wait_for(commits, 1)
        last = threads.submit(commits.submit, 2)
        wait_for(commits, 1 if interrupted is InterruptedAtOnce else 2)
        act.leave.release()
        act.leave.release()
        assert first.result(60) == 0
        assert last.result(60) == 20
        assert isinstance(gone.exception(10), KeyboardInterrupt)
    assert act.groups == [[0], [2]]


def test_too_few_answers_are_an_error_for_everybody() -> None:
    act = Held()
    commits = GroupCommit(lambda requests: act(requests)[:1], most=9)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(commits.submit, 0)
        assert act.began.acquire(timeout=100)
        others = [threads.submit(commits.submit, request) for request in (1, 2)]
        wait_for(commits, 2)
        act.leave.release()
        act.leave.release()
        assert first.result(60) == 0
        for other in others:
            with pytest.raises(ValueError, match="1 result of 2 requests"):
                other.result(60)
