"""What a container's probe asks: whether the reaper of this `run_dir` still makes its rounds.

It reads one file. A round that fails, as all do while Postgres is away, is a round.
"""

import sys
import time

from nightshift.common.telemetry.run_dir import EXIT_NO_RUN_DIR, NoRunDir, usable
from nightshift.common.telemetry.run_state import REAPER, heard, is_late


def answer() -> int:
    """Says one sentence; 0 when it lives, 1 when it stands still or is not there, 2 without a
    folder to look into.
    """
    try:
        run_dir = usable()
        reaper = heard(run_dir / f"{REAPER}.json")
    except NoRunDir as error:
        return _said(EXIT_NO_RUN_DIR, str(error))
    if reaper is None:
        return _said(1, f"no nightshift reaper runs with NIGHTSHIFT_RUN_DIR={run_dir}")
    silent = time.monotonic() - reaper["at"]
    if is_late(reaper, time.monotonic()):
        return _said(1, f"the reaper has stood still for {silent:.0f} s")
    return _said(0, f"the reaper was at work {silent:.0f} s ago")


def _said(code: int, sentence: str) -> int:
    print(f"nightshift alive: {sentence}", file=sys.stderr if code else sys.stdout)
    return code
