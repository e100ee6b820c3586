"""A line in the terminal for each wait of a command for its Postgres, whatever the command asks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from nightshift.common.ledger import Ledger
from nightshift.producer.views.progress import SILENT_SECONDS

AGAIN_SECONDS = 30.0
"""Pause between two lines about the same wait."""

CHECK_SECONDS = 0.5


@contextmanager
def reported(ledger: Ledger, console: Console) -> Iterator[None]:
    """Print a line while Postgres keeps the calling thread waiting for longer than SILENT_SECONDS."""
    watched, ended = threading.get_ident(), threading.Event()

    def watch() -> None:
        due = SILENT_SECONDS
        while not ended.wait(CHECK_SECONDS):
            waited = ledger.waiting_seconds(watched)
            if waited >= due:
                due = waited + AGAIN_SECONDS
                console.print(
                    f"Postgres at {ledger.place} is silent (for {waited:.0f} s; this command waits)",
                    style="yellow",
                    soft_wrap=True,
                    highlight=False,
                    markup=False,
                )
            elif waited < SILENT_SECONDS:
                due = SILENT_SECONDS

    thread = threading.Thread(target=watch, name="silence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
