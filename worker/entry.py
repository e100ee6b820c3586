"""The console script `nightshift-worker`: probes answer before anything heavy is imported."""

import os
import signal
import sys


def main() -> None:
    """Runs a probe at once, and everything else through worker/cli.py."""
    # Nothing is to be drained yet. The first process of a container ignores signals without a
    # handler, and would live on until it is killed.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if sys.argv[1:] in (["started"], ["alive"], ["drain"]):
        from nightshift.worker.supervisor import probes

        sys.exit(probes.answer(sys.argv[1]))
    from nightshift.worker import cli

    cli.main()
