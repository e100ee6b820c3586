"""A worker that has another host name: `python -m tests.browser.on_host NAME [ARGUMENTS]`."""

import socket
import sys

from nightshift.worker import cli


def main() -> None:
    """Runs `nightshift-worker` under the name."""
    name = sys.argv.pop(1)
    socket.gethostname = lambda: name
    cli.main()


if __name__ == "__main__":
    main()
