"""What a container's probe asks: whether the reaper of this `run_dir` still makes its rounds.

The probe reads one file. A round that fails, as all do while Postgres is away, counts as a round.
"""

import sys
import time

from nightshift.common.exit_codes import ExitCode
from nightshift.common.telemetry import run_state


def answer() -> int:
    """Prints one sentence; returns 0 when the reaper works, 1 when it hangs or does not run, 2 when
    there is no folder to read.
    """
    try:
        run_dir = run_state.usable()
        reaper = run_state.read_state(run_dir / f"{run_state.REAPER}.json")
    except run_state.NoRunDir as error:
        return _print(ExitCode.NO_RUN_DIR, str(error))
    if reaper is None:
        return _print(
            ExitCode.FINDINGS, f"no nightshift reaper runs with NIGHTSHIFT_RUN_DIR={run_dir}"
        )
    silent = time.monotonic() - reaper["at"]
    if run_state.is_late(reaper, time.monotonic()):
        return _print(ExitCode.FINDINGS, f"the reaper has stood still for {silent:.0f} s")
    return _print(ExitCode.DONE, f"the reaper was at work {silent:.0f} s ago")


def _print(code: int, sentence: str) -> int:
    print(f"nightshift alive: {sentence}", file=sys.stderr if code else sys.stdout)
    return code
