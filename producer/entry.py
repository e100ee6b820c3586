"""The console script `nightshift`: the probe answers before anything heavy is imported."""

import os
import signal
import sys


def main() -> None:
    """Runs the probe at once, and everything else through producer/cli/app.py."""
    if sys.argv[1:] == ["alive"]:
        from nightshift.producer.reaper import alive

        sys.exit(alive.answer())
    if sys.argv[1:] == ["reaper"]:
        # The first process of a container ignores what it does not handle.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from nightshift.producer.cli import app

    app.main()
