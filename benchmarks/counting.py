"""What metrics cost a child: counting a row and a batch, beside the same calls that keep nothing.

Run as `python -m benchmarks.counting`; it prints microseconds of CPU with metrics off and on.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from nightshift.common.settings import child_environment, load_settings
from nightshift.worker.telemetry.counts import Counts
from nightshift.worker.telemetry.recorder import BatchCommitted, Recorder
from nightshift.worker.telemetry.stage import Stage
from nightshift.worker.telemetry.utilization import Utilization

TIMES = 50_000

ROUNDS = 5
"""The fastest round counts: other processes of the machine can only slow one down."""


def main() -> None:
    """Measures in a process whose counts go to files, as a child's do."""
    with tempfile.TemporaryDirectory() as folder:
        environment = child_environment(load_settings(), PROMETHEUS_MULTIPROC_DIR=folder)
        code = "from benchmarks.counting import measure; measure()"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def measure() -> None:
    """Prints both contenders."""
    utilization = Utilization(64)
    counts = Counts(utilization, "pool", "function", 0)
    contenders = {"off": Recorder(), "on": Recorder(utilization, counts)}
    for what, one in (("row", _row), ("batch", _batch)):
        found = {
            name: min(_microseconds(one, recorder) for _ in range(ROUNDS))
            for name, recorder in contenders.items()
        }
        more = found["on"] - found["off"]
        print(f"{what}: off {found['off']:.2f} µs, on {found['on']:.2f} µs, so {more:.2f} µs more")


def _row(recorder: Recorder) -> None:
    recorder.rows_entered()
    recorder.rows_left()


def _batch(recorder: Recorder) -> None:
    for stage in Stage:
        with recorder.span(stage):
            pass
    recorder.batches_claimed(1)
    recorder.batch_ended()
    recorder.batch_committed(
        BatchCommitted(
            1,
            1,
            part_rows=1,
            part_errors=0,
            rows=1,
            rows_failed=0,
            prompt_tokens=10,
            output_tokens=20,
            seconds=1.0,
            whole=True,
        )
    )


def _microseconds(one: Callable[[Recorder], None], recorder: Recorder) -> float:
    began = time.process_time()
    for _ in range(TIMES):
        one(recorder)
    return (time.process_time() - began) / TIMES * 1e6


if __name__ == "__main__":
    main()
