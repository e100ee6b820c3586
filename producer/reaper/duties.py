"""The table of duties: what a reaper does, in the order of a round, and beside the rounds."""

from nightshift.producer import wings
from nightshift.producer.reaper import (
    beat,
    dispatch,
    finish_jobs,
    generation_files,
    hold_budgets,
    reap,
    tidy,
    unqueue,
)
from nightshift.producer.reaper.duty import Duty, Reaper

CORE = (
    # This duty runs before the admission: a job over its budget must get no more batches.
    hold_budgets.duty,
    unqueue.duty,
    dispatch.duty,
    reap.duty,
    tidy.duty,
    beat.duty,
    finish_jobs.duty,
    generation_files.duty,
)


def table(reaper: Reaper) -> list[Duty]:
    """Return the duties of a reaper, those of wings at the end; failures of each are counted by its name."""
    found = [make(reaper) for make in CORE]
    for of_wing in wings.offered("duties"):
        found += of_wing(reaper)
    for duty in found:
        reaper.rounds.expect(duty.name)
    return found
