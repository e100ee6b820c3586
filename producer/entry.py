"""The console script `nightshift`; `nightshift alive` answers without heavy imports."""

import os
import signal
import sys


def main() -> None:
    """Runs the probe here, and every other command through producer/cli/app.py."""
    if sys.argv[1:] == ["alive"]:
        from nightshift.producer.reaper import alive

        sys.exit(alive.answer())
    if sys.argv[1:] == ["reaper"]:
        # The first process of a container ignores signals without a handler, also during imports.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from nightshift.producer.cli import app

    app.main()
