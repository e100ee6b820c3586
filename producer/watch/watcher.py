"""What a reaper does beside its rounds for jobs that grow: it looks at watched inputs, and writes the
files of generations that are done.
"""

import threading
from collections.abc import Callable
from functools import partial

from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.reaper import generation_files
from nightshift.producer.watch import look

PAUSE_SECONDS = 1.0
"""Pause between two rounds of the watcher."""


def watch(
    ledger: Ledger,
    settings: Settings,
    stop: threading.Event,
    run_duty: Callable[[Callable[[], object]], bool],
) -> None:
    """Makes every look that is due, and finishes generations, until `stop` is set."""
    while not stop.wait(PAUSE_SECONDS):
        run_duty(partial(make_looks, ledger, settings, stop))
        run_duty(partial(generation_files.write_finished, ledger))


def make_looks(ledger: Ledger, settings: Settings, stop: threading.Event) -> None:
    """Makes the looks that are due, one after the other."""
    while not stop.is_set() and look.look_once(ledger, settings):
        pass
