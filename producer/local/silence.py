"""A line in the terminal for each long wait of a command for its servers, whatever the command asks."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console

from nightshift.common.ledger import Ledger
from nightshift.producer.views.progress import SILENT_SECONDS

AGAIN_SECONDS = 30.0
"""Pause between two lines about the same wait."""

CHECK_SECONDS = 0.5

START_SECONDS = 10.0
"""Servers take a few seconds to start and to end, and longer on a busy machine."""


def reported(ledger: Ledger, console: Console) -> AbstractContextManager[None]:
    """Print a line while Postgres keeps the calling thread waiting for longer than SILENT_SECONDS."""
    watched = threading.get_ident()
    return _noticed(
        console,
        f"Postgres at {ledger.place} is silent",
        lambda: ledger.waiting_seconds(watched),
        SILENT_SECONDS,
    )


def long_wait_reported(line: str, console: Console) -> AbstractContextManager[None]:
    """Print a line while the start or the end of servers takes longer than START_SECONDS."""
    began = time.monotonic()
    return _noticed(console, line, lambda: time.monotonic() - began, START_SECONDS)


@contextmanager
def _noticed(
    console: Console, line: str, waited_seconds: Callable[[], float], patience_seconds: float
) -> Iterator[None]:
    """Print `line` once `waited_seconds` reaches `patience_seconds`, and every AGAIN_SECONDS after that."""
    ended = threading.Event()

    def watch() -> None:
        due = patience_seconds
        while not ended.wait(CHECK_SECONDS):
            waited = waited_seconds()
            if waited >= due:
                due = waited + AGAIN_SECONDS
                console.print(
                    f"{line} (for {waited:.0f} s; this command waits)",
                    style="yellow",
                    soft_wrap=True,
                    highlight=False,
                    markup=False,
                )
            elif waited < patience_seconds:
                due = patience_seconds

    thread = threading.Thread(target=watch, name="silence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
