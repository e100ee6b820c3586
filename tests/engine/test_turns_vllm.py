"""Turns of requests that must not be in one step of vLLM."""

import asyncio
from collections.abc import Sequence

import pytest

from nightshift.worker.engines.vllm.turns import Turns


def ran(kinds: Sequence[str | None], cancelled: Sequence[int] = ()) -> list[set[int]]:
    """The requests that ran at the same time, in order, of these kinds; those cancelled never ran."""

    async def run() -> list[set[int]]:
        turns = Turns()
        running: set[int] = set()
        seen: list[set[int]] = []
        go_on = asyncio.Event()

        async def one(number: int, kind: str | None) -> None:
            async with turns.turn(kind):
                running.add(number)
                seen.append(set(running))
                await go_on.wait()
                await asyncio.sleep(0)
                running.discard(number)

        tasks = [asyncio.create_task(one(*each)) for each in enumerate(kinds)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with turns.turn("z"):
            return seen

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("kinds", ["aaa", "ab", "abab", "aabba", "abba"])
def test_requests_of_two_kinds_never_run_together(kinds: str) -> None:
    seen = ran(list(kinds))
    assert set().union(*seen) == set(range(len(kinds)))
    assert all(len({kinds[number] for number in together}) == 1 for together in seen)


def test_requests_of_one_kind_and_of_no_kind_run_together() -> None:
    assert {0, 1, 2} in ran(["a", None, "a", "b"])


def test_who_waits_is_not_passed_by_who_comes_later() -> None:
    assert {0, 2} not in ran(["a", "b", "a"])


@pytest.mark.parametrize("cancelled", [[0], [1], [0, 1], [2]])
def test_a_request_that_is_stopped_leaves_its_place(cancelled: list[int]) -> None:
    seen = ran(["a", "b", "a", "b"], cancelled)
    left = set(range(4)) - set(cancelled) - {0}
    assert left <= set().union(*seen)
