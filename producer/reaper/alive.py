"""What a container's probe asks: whether the reaper of this `run_dir` still makes its rounds.

The probe reads one file. A round that fails, as all do while Postgres is away, counts as a round.
"""

import sys
import time

from nightshift.common.telemetry.run_dir import EXIT_NO_RUN_DIR, NoRunDir, usable
from nightshift.common.telemetry.run_state import REAPER, is_late, read_state


def answer() -> int:
    """Prints one sentence; returns 0 when the reaper works, 1 when it hangs or does not run, 2 when
    there is no folder to read.
    """
    try:
        run_dir = usable()
        reaper = read_state(run_dir / f"{REAPER}.json")
    except NoRunDir as error:
        return _print(EXIT_NO_RUN_DIR, str(error))
    if reaper is None:
        return _print(1, f"no nightshift reaper runs with NIGHTSHIFT_RUN_DIR={run_dir}")
    silent = time.monotonic() - reaper["at"]
    if is_late(reaper, time.monotonic()):
        return _print(1, f"the reaper has stood still for {silent:.0f} s")
    return _print(0, f"the reaper was at work {silent:.0f} s ago")


def _print(code: int, sentence: str) -> int:
    print(f"nightshift alive: {sentence}", file=sys.stderr if code else sys.stdout)
    return code
