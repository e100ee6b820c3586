"""The duty: one look at the job that has waited for longest, and when the next one comes."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from nightshift.common.ledger import Connection, Ledger, Row
from nightshift.common.ledger.jobs import pictures
from nightshift.common.ledger.jobs.pictures import Turn
from nightshift.producer.pictures import series
from nightshift.producer.pictures.lanes import Lanes
from nightshift.producer.pictures.series import MOST_POINTS, Point
from nightshift.producer.reaper.duty import Duty, Reaper

PAUSE_SECONDS = 1.0
"""Pause between two looks for jobs whose turn it is, where there is none."""

LEAST_PAUSE = 5.0
"""Seconds between two looks at one job, at least."""

COST_TIMES = 100
"""A job is left alone for so many times what its last look took: a hundredth of the time at most goes into it."""

REST_TIMES = 9
"""After each look a reaper rests for so many times what the look took: a tenth of the time goes into all jobs."""

LAG_SECONDS = 5.0
"""Leases that ended less than this time ago wait for the next look: their commits may still be under way."""

MOST_LEASES = 50_000
"""Leases that one look reads."""


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Beside the rounds: a look at a million batches takes a second."""
    look = partial(record, reaper.ledger, reaper.stop)
    return [Duty("record_pictures", PAUSE_SECONDS, look, threads=1)]


def record(ledger: Ledger, stop: threading.Event) -> bool:
    """Looks at the job that has waited for longest; False where no job is due. Several reapers share the jobs."""
    with ledger.transaction() as connection:
        turn = pictures.take(connection)
    if turn is None:
        return False
    began = time.monotonic()
    with ledger.transaction() as connection:
        look(connection, turn, began)
    stop.wait(REST_TIMES * (time.monotonic() - began))
    return True


def look(connection: Connection, turn: Turn, began: float) -> bool:
    """Notes what a job has now; False where the job is due anew, and where it is gone. `began` is when the look began,
    in monotonic seconds.
    """
    facts = pictures.facts(connection, turn.job_id)
    if facts is None:
        return False
    points = series.added([Point(*point) for point in facts["series"]], _point(facts))
    leases, seen_until, is_cut = _leases(connection, turn, facts)
    lanes = Lanes.of_json(facts["lanes"]).plus(leases)
    width, cells = pictures.cells(connection, turn.job_id)
    life = facts["now"] - points[0].at
    rest = pause(life, time.monotonic() - began, is_closed=facts["is_closed"], is_cut=is_cut)
    return pictures.write(
        connection,
        turn,
        series=points,
        lanes=lanes.as_json(),
        cells={"width": width, "cells": cells},
        seen_until=seen_until,
        pause=rest,
    )


def pause(life: float, took: float, *, is_closed: bool, is_cut: bool) -> float | None:
    """Seconds until the next look at a job that has lived for `life` seconds, and whose look took `took` seconds; None
    after the last one. A look that was cut off at MOST_LEASES is followed by another one soon.
    """
    if is_cut:
        return LEAST_PAUSE
    return None if is_closed else max(LEAST_PAUSE, life / MOST_POINTS, COST_TIMES * took)


def _point(facts: Row) -> Point:
    return Point(
        round(facts["now"], 3),
        facts["rows_total"],
        facts["rows_done"],
        facts["rows_failed"],
        facts["prompt_tokens"],
        facts["cached_tokens"],
        facts["output_tokens"],
        facts["reasoning_tokens"],
    )


def _leases(connection: Connection, turn: Turn, facts: Row) -> tuple[Sequence[Any], float, bool]:
    """Leases that ended since the look before, until when they are known now, and whether there are more."""
    until = facts["now"] - (0.0 if facts["is_closed"] else LAG_SECONDS)
    # Where the clock was set back, what ended meanwhile is left out.
    since = min(facts["seen_until"] or 0.0, until)
    found = pictures.ended(connection, turn.job_id, since, until, MOST_LEASES)
    if len(found) < MOST_LEASES:
        return found, until, False
    # Leases of one commit ended at one moment, and stay together.
    last = found[-1]["ended"]
    whole = [lease for lease in found if lease["ended"] < last]
    return (whole, last, True) if whole else (found, last + 1e-6, True)
