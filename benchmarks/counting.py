"""What metrics cost a child: counting a row and a batch, beside the same calls that keep nothing.

Run as `python -m benchmarks.counting`; it prints microseconds of CPU with metrics off and on.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from nightshift.common.settings import child_environment, load_settings
from nightshift.worker.telemetry.utilization import NO_PROFILE, Profile, Stage
from nightshift.worker.telemetry.counts import NO_TALLY, Ran, Tally

TIMES = 50_000

ROUNDS = 5
"""The fastest counts: others on the machine only make one slower."""


def main() -> None:
    """Measures in a process whose counts go to files, as a child's do."""
    with tempfile.TemporaryDirectory() as folder:
        environment = child_environment(load_settings(), PROMETHEUS_MULTIPROC_DIR=folder)
        code = "from benchmarks.counting import measure; measure()"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def measure() -> None:
    """Prints both contenders."""
    tally = Tally("pool", "function", 0)
    contenders = {"off": (NO_PROFILE, NO_TALLY), "on": (Profile(64), tally)}
    for what, one in (("row", _row), ("batch", _batch)):
        found = {
            name: min(_microseconds(one, *contender) for _ in range(ROUNDS))
            for name, contender in contenders.items()
        }
        more = found["on"] - found["off"]
        print(f"{what}: off {found['off']:.2f} µs, on {found['on']:.2f} µs, so {more:.2f} µs more")


def _row(profile: Profile, _tally: Tally) -> None:
    profile.engine.enter()
    profile.engine.leave()


def _batch(profile: Profile, tally: Tally) -> None:
    for stage in Stage:
        with profile.span(stage):
            pass
    profile.engine.claimed(1)
    profile.engine.let_go()
    tally.committed(Ran(1, 0, 10, 20, 1.0, whole=True))


def _microseconds(one: Callable[[Profile, Tally], None], profile: Profile, tally: Tally) -> float:
    began = time.process_time()
    for _ in range(TIMES):
        one(profile, tally)
    return (time.process_time() - began) / TIMES * 1e6


if __name__ == "__main__":
    main()
