"""Everything dies at random, for as long as asked: three jobs, workers from 1 to 6 to 2."""

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count

import psutil
import pytest

from tests.support.fleet import kill_tree, wait_until
from tests.support.proxy import Mode, Proxy
from tests.support.rig import Rig
from tests.support.servers import Server

ROWS_A_JOB = 3000

LARGEST_BATCH = 16

HELD_ROWS = 128 + 2 * LARGEST_BATCH
"""What a child of the function engine holds at most: its window, and the batches at its edge."""


class Chaos:
    """Takes one random step after the other and counts what it may have cost.

    `victims` counts the children that lost what they held: killed, or frozen past their lease.
    """

    def __init__(self, rig: Rig, postgres: Server, redis: Server, proxy: Proxy, seed: int) -> None:
        self.rig, self.postgres, self.redis, self.proxy = rig, postgres, redis, proxy
        self.chance = random.Random(seed)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.reapers: list[subprocess.Popen[bytes]] = []
        self.wanted_workers: Iterator[int] = self._scales()
        self.steps: Counter[str] = Counter()
        self.victims = 0

    def begin(self) -> None:
        """Two reapers, one worker."""
        self.reapers = [self.rig.reaper(), self.rig.reaper()]
        self._scale(1)

    def step(self) -> None:
        """One fault, with the weights of a bad night."""
        faults: dict[Callable[[], None], int] = {
            self.kill_child: 4,
            self.freeze_child: 3,
            self.kill_worker: 2,
            self.drain_worker: 2,
            self.scale: 3,
            self.kill_reaper: 2,
            self.freeze_reaper: 2,
            self.cut_connections: 2,
            self.hold_connections: 1,
            self.restart_postgres: 1,
            self.kill_postgres: 1,
            self.freeze_postgres: 1,
            self.flush_redis: 2,
            self.restart_redis: 1,
            self.freeze_redis: 1,
        }
        (fault,) = self.chance.choices(list(faults), weights=list(faults.values()))
        self.steps[fault.__name__] += 1
        fault()

    def settle(self) -> None:
        """Everything is up again: two reapers, two workers."""
        self.proxy.mode = Mode.PASS
        for server in (self.postgres, self.redis):
            server.thaw()
            server.start()
        self._revive()
        # One that was started during an outage leaves with exit code 2: these two are not.
        self._scale(0)
        self._scale(2)

    # ------------------------------------------------------------ workers

    def kill_child(self) -> None:
        if children := self._children():
            self.victims += 1
            self.chance.choice(children).kill()

    def freeze_child(self) -> None:
        if not (children := self._children()):
            return
        self.victims += 1
        child = self.chance.choice(children)
        child.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.2, 5))
        child.send_signal(signal.SIGCONT)

    def kill_worker(self) -> None:
        if self.workers:
            worker = self.workers.pop(self.chance.randrange(len(self.workers)))
            self.victims += 1
            kill_tree(worker)

    def drain_worker(self) -> None:
        if len(self.workers) > 1:
            # A drain that takes longer than its grace leaves what it has not finished.
            self.victims += 1
            self.workers.pop(0).terminate()

    def scale(self) -> None:
        self._scale(next(self.wanted_workers))

    def _scales(self) -> Iterator[int]:
        while True:
            yield from (1, 3, 6, 4, 2)

    def _scale(self, wanted: int) -> None:
        self.workers = [one for one in self.workers if one.poll() is None]
        while len(self.workers) < wanted:
            self.workers.append(self.rig.worker())
        for worker in self.workers[wanted:]:
            self.victims += 1
            worker.terminate()
        del self.workers[wanted:]

    def _children(self) -> list[psutil.Process]:
        return [child for worker in self.workers for child in self.rig.children(worker)]

    # ------------------------------------------------------------ reapers

    def kill_reaper(self) -> None:
        kill_tree(self.chance.choice(self.reapers))
        self._revive()

    def freeze_reaper(self) -> None:
        reaper = self.chance.choice(self.reapers)
        reaper.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.2, 4))
        reaper.send_signal(signal.SIGCONT)

    def _revive(self) -> None:
        self.reapers = [one if one.poll() is None else self.rig.reaper() for one in self.reapers]

    # ------------------------------------------------------------ servers

    def cut_connections(self) -> None:
        self.proxy.cut()

    def hold_connections(self) -> None:
        self.proxy.mode = self.chance.choice([Mode.HOLD, Mode.SWALLOW])
        time.sleep(self.chance.uniform(0.2, 4))
        self.proxy.mode = Mode.PASS
        self.proxy.cut()

    def restart_postgres(self) -> None:
        self.postgres.stop()
        time.sleep(self.chance.uniform(0, 3))
        self.postgres.start()

    def kill_postgres(self) -> None:
        self.postgres.kill()
        self.postgres.start()

    def freeze_postgres(self) -> None:
        self.postgres.freeze()
        time.sleep(self.chance.uniform(0.2, 4))
        self.postgres.thaw()

    def flush_redis(self) -> None:
        import redis

        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()

    def restart_redis(self) -> None:
        self.redis.kill()
        time.sleep(self.chance.uniform(0, 2))
        self.redis.start()

    def freeze_redis(self) -> None:
        self.redis.freeze()
        time.sleep(self.chance.uniform(0.2, 4))
        self.redis.thaw()


@pytest.mark.long
@pytest.mark.timeout(0)
def test_three_jobs_through_a_bad_night(
    proxied: Rig,
    postgres: Server,
    redis: Server,
    proxy: Proxy,
    minutes: float,
    session_began: float,
    chance: random.Random,
) -> None:
    """Runs for what is left of `--minutes`, one minute at least."""
    rig = proxied
    ends = max(session_began + 60 * minutes, time.monotonic() + 60)
    chaos = Chaos(rig, postgres, redis, proxy, chance.randrange(2**32))
    numbers = count(1)
    jobs: dict[str, list[str]] = {}

    def submit() -> None:
        name = f"job-{next(numbers)}"
        files = [(f"{name}.{chance.choice(['parquet', 'jsonl'])}", ROWS_A_JOB)]
        rows, order = chance.choice([5, 7, LARGEST_BATCH]), chance.choice(["none", "prefix"])
        source = {"uri": str(rig.folder / f"in-{name}"), "id": "id", "columns": ["text"]}
        batch = {"rows": rows, "arrange": order}
        jobs[name] = rig.submit(name, files, batch=batch, input=source)

    chaos.begin()
    while time.monotonic() < ends:
        while _open_jobs(rig) < 3:
            submit()
        time.sleep(chance.uniform(0.3, 3))
        chaos.step()
    chaos.settle()
    for name, ids in jobs.items():
        rig.finished(name, ids, seconds=300)
    computed = Counter((rig.folder / "computed").read_text().split())
    again = sum(computed.values()) - len(computed)
    print(
        f"{len(jobs)} jobs, {again} of {len(computed)} rows computed again, {chaos.victims} "
        f"children lost what they held: {dict(chaos.steps)}"
    )
    assert set(computed) == {each for ids in jobs.values() for each in ids}
    assert again <= chaos.victims * HELD_ROWS
    failures, _ = rig.charges()
    assert failures == 0
    for worker in chaos.workers:
        worker.terminate()
    wait_until(lambda: all(one.poll() == 0 for one in chaos.workers), 120, "the drain")
    assert rig.value("SELECT count(*) FROM batches WHERE state = 'leased'") == 0


def _open_jobs(rig: Rig) -> int:
    return int(rig.value("SELECT count(*) FROM jobs WHERE closed_at IS NULL"))
