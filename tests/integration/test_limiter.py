"""The rate of a fleet, held in a real Redis by several limiters and processes at once."""

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from nightshift.producer.embedded.redis_server import EmbeddedRedis
from nightshift.worker.engines.openai import limiter as module
from nightshift.worker.engines.openai.limiter import Limiter, Rates

T = TypeVar("T")


def name() -> str:
    return uuid.uuid4().hex


made: list[Limiter] = []


def member(url: str | None, bucket: str, rates: Rates) -> Limiter:
    made.append(Limiter(url, bucket, uuid.uuid4().hex, rates))
    return made[-1]


def finished(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `main` returns; every limiter is closed whatever it raises."""

    async def whole() -> T:
        try:
            return await main()
        finally:
            await close(*made)
            made.clear()

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def a_slow_machine_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REDIS_TIMEOUT_SECONDS", 30.0)


async def admitted(
    limiters: list[Limiter], seconds: float, tokens: float = 0, *, least: int = 0
) -> int:
    """How many requests all of them let go in so long, or until it was `least` of them."""
    count, enough = 0, asyncio.Event()

    async def go_on(limiter: Limiter) -> None:
        nonlocal count
        while True:
            if count >= least:
                enough.set()
            await limiter.admit(tokens)
            count += 1

    tasks = [asyncio.create_task(go_on(limiter)) for limiter in limiters for _ in range(8)]
    await asyncio.sleep(seconds)
    await asyncio.wait_for(enough.wait(), 100)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return count


async def close(*limiters: Limiter) -> None:
    for limiter in limiters:
        await limiter.close()


def most(a_second: float, seconds: float, burst: float = 1) -> float:
    """What may go in so long: the rate, the burst, and the one that runs into debt."""
    return a_second * (seconds + burst) + 1


@pytest.mark.slow
def test_two_members_hold_one_rate_together(redis_url: str) -> None:
    async def run() -> tuple[int, float]:
        bucket = name()
        both = [member(redis_url, bucket, Rates(requests=1200)) for _ in range(2)]
        began = time.monotonic()
        # More than the burst, however slow this machine.
        count = await admitted(both, 1.5, least=30)
        took = time.monotonic() - began
        await close(*both)
        return count, took

    count, seconds = finished(run)
    assert count <= most(20, seconds)


MEMBER = """
import asyncio, sys, time
import redis
from tests.integration.test_limiter import admitted, member
from nightshift.worker.engines.openai import limiter as module
from nightshift.worker.engines.openai.limiter import Rates

module.REDIS_TIMEOUT_SECONDS = 30.0

async def run(url, bucket):
    limiter = member(url, bucket, Rates(requests=1200))
    with redis.Redis.from_url(url) as client:
        client.incr(bucket)
        while int(client.get(bucket)) < 2:
            time.sleep(0.01)
    began = time.time()
    count = await admitted([limiter], 1.5, least=15)
    print(count, began, time.time())
    await limiter.close()

asyncio.run(run(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.slow
def test_two_processes_hold_one_rate_together(redis_url: str) -> None:
    """Each goes on until it had its part: how fast one of them gets there is the machine's affair."""
    bucket = name()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, redis_url, bucket],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        said = [process.communicate(timeout=150)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
    counts = [int(count) for count, _, _ in said]
    seconds = max(float(end) for _, _, end in said) - min(float(began) for _, began, _ in said)
    assert all(count >= 15 for count in counts)
    assert sum(counts) <= most(20, seconds)


def test_jobs_with_different_rates_share_one_minute(redis_url: str) -> None:
    async def run() -> tuple[int, int, float]:
        bucket = name()
        slow = member(redis_url, bucket, Rates(requests=600))
        fast = member(redis_url, bucket, Rates(requests=2400))
        began = time.monotonic()
        counts = await asyncio.gather(
            admitted([slow], 1.5, least=1), admitted([fast], 1.5, least=1)
        )
        took = time.monotonic() - began
        await close(slow, fast)
        return counts[0], counts[1], took

    slow, fast, seconds = finished(run)
    assert slow / 10 + fast / 40 <= seconds + 1 + 1 / 10 + 1 / 40
    assert slow
    assert fast


def test_tokens_that_were_not_used_are_given_back_and_those_beyond_are_taken(
    redis_url: str,
) -> None:
    async def run() -> None:
        rates = Rates(tokens=60_000)  # 1,000 a second
        bucket = name()
        one = member(redis_url, bucket, rates)
        first = await one.admit(100_000)  # a hundred seconds of debt
        await one.correct(first, 1)  # nothing of it was used
        second = await asyncio.wait_for(one.admit(10), 60)
        await one.correct(second, 100_000)  # far more than was thought
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.admit(1), 0.5)
        other = member(redis_url, bucket, rates)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.admit(1), 0.5)
        await close(one, other)

    finished(run)


def test_estimates_learn_what_requests_really_use(redis_url: str) -> None:
    async def run() -> float:
        one = member(redis_url, name(), Rates(tokens=60_000_000))
        for _ in range(100):
            await one.correct(await one.admit(1000), 10)
        taken = await one.admit(1000)
        await close(one)
        return taken.reserved

    assert finished(run) < 50


def test_a_pause_holds_the_whole_fleet_also_without_a_rate(redis_url: str) -> None:
    async def run() -> float:
        bucket = name()
        told, other = (member(redis_url, bucket, Rates()) for _ in range(2))
        await other.admit(1)
        began = time.monotonic()
        await told.pause(0.6)
        await told.pause(0.1)  # a shorter one takes nothing away
        await asyncio.gather(told.admit(1), other.admit(1))
        await close(told, other)
        return time.monotonic() - began

    assert finished(run) >= 0.6


def test_whoever_is_cancelled_at_whatever_step_goes_no_further(redis_url: str) -> None:
    async def run() -> list[int]:
        one, went_on = member(redis_url, name(), Rates()), []
        for steps in range(40):
            await one.admit(0)  # connected
            task = asyncio.create_task(one.admit(0))
            for _ in range(steps):
                await asyncio.sleep(0)
            if task.cancel():
                (ended,) = await asyncio.gather(task, return_exceptions=True)
                if not isinstance(ended, asyncio.CancelledError):
                    went_on.append(steps)
        return went_on

    assert finished(run) == []


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    server.start(tmp_path)
    yield server
    server.stop()


def test_without_redis_each_child_goes_on_at_its_share_and_a_stranger_waits(
    own_redis: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REDIS_RETRY_SECONDS", 0.2)

    async def run() -> tuple[int, float]:
        url, bucket, rates = own_redis.url, name(), Rates(requests=1200)
        known = [member(url, bucket, rates) for _ in range(2)]
        for limiter in known * 2:  # the second time, each knows of both
            await limiter.admit(0)
        own_redis.stop()
        began = time.monotonic()
        count = await admitted(known, 1.5, least=4)
        took = time.monotonic() - began
        stranger = member(url, bucket, rates)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stranger.admit(0), 0.5)
        own_redis.start(tmp_path)
        await asyncio.wait_for(stranger.admit(0), 100)
        await close(*known, stranger)
        return count, took

    count, seconds = finished(run)
    # Each of the two has a burst and a debt of its own share.
    assert 4 <= count <= 20 * (seconds + 1) + 2


def test_without_redis_a_pause_still_holds_this_child(own_redis: EmbeddedRedis) -> None:
    async def run() -> float:
        one = member(own_redis.url, name(), Rates())
        await one.admit(0)
        own_redis.stop()
        began = time.monotonic()
        await one.pause(0.5)
        await one.admit(0)
        await close(one)
        return time.monotonic() - began

    assert finished(run) >= 0.5


def test_a_flushed_redis_costs_one_burst(redis_url: str) -> None:
    async def run() -> tuple[int, float]:
        bucket = name()
        one = member(redis_url, bucket, Rates(requests=1200))
        began = time.monotonic()
        count = await admitted([one], 0.5)
        with redis.Redis.from_url(redis_url) as client:
            client.delete(f"nightshift:rate:{{{bucket}}}")
        count += await admitted([one], 0.5)
        took = time.monotonic() - began
        await close(one)
        return count, took

    count, seconds = finished(run)
    assert count <= most(20, seconds, burst=2) + 1
