"""Duty: where each open job stands is told, for those who look.

One reaper does it for all, by a hold. A row is written when something of it has changed.
"""

from collections.abc import Sequence
from dataclasses import asdict

import structlog

from nightshift.common.errors import Retryable
from nightshift.common.ledger import Connection, Ledger, Row, holds
from nightshift.common.ledger.holds import Hold, Kind
from nightshift.common.ledger.queries import standings
from nightshift.common.ledger.queries.standings import Told
from nightshift.producer.explain import facts
from nightshift.producer.explain.snapshot import Facts
from nightshift.producer.explain.standing import standing
from nightshift.producer.reaper.duty import Duty, Reaper

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 3.0
"""Pause between two turns."""

MOST_JOBS = 500
"""Jobs of one turn. Those whose state has changed come first, then the others in turn."""

MOST_UNTOLD = 20
"""Jobs of one turn of which nothing can be told. With more of them the cause is none of the jobs: the turn fails."""

SUBJECT = "jobs"
"""What is held: one reaper tells of all jobs."""


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Beside the rounds: it holds up no admission."""
    teller = Teller(reaper.ledger, reaper.name)
    reaper.at_end.callback(reaper.attempt, "tell_standings", teller.leave)
    return [Duty("tell_standings", PAUSE_SECONDS, teller.turn, threads=1)]


class Teller:
    """What one reaper tells: the hold that it has, and the job that it told last."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name = ledger, name
        self._hold: Hold | None = None
        self._after = 0

    def turn(self) -> bool:
        """Tells of some jobs, unless another reaper does."""
        with self._ledger.transaction() as connection:
            if self._hold is None or not holds.renew(connection, self._hold):
                self._hold = holds.take(connection, Kind.STANDINGS, SUBJECT, self._name)
            if self._hold is None:
                return False
            due = standings.due(connection, after=self._after, limit=MOST_JOBS)
            standings.forget(connection)
        written = self._told([id for id, _ in due], [])
        self._after = next((id for id, changed in reversed(due) if not changed), self._after)
        return written == MOST_JOBS

    def _told(self, job_ids: Sequence[int], untold: list[int]) -> int:
        """Tells of jobs; how many rows were written. One of which nothing can be told holds up no other: it is
        found by halves, and comes to the `untold`.
        """
        try:
            with self._ledger.transaction() as connection:
                return tell(connection, job_ids)
        except Retryable:
            raise
        except Exception as error:
            if len(job_ids) < 2:
                untold += job_ids
                log.warning("standing_untold", jobs=untold, error=str(error))
                if len(untold) > MOST_UNTOLD:
                    raise
                return 0
        middle = len(job_ids) // 2
        halves = job_ids[:middle], job_ids[middle:]
        return sum(self._told(half, untold) for half in halves)

    def leave(self) -> None:
        """Lets another reaper tell at once."""
        if self._hold is not None:
            with self._ledger.transaction() as connection:
                holds.release(connection, self._hold)


def tell(connection: Connection, job_ids: Sequence[int]) -> int:
    """Writes where these jobs stand, where that has changed; returns how many rows were written. Nothing is told
    before a reaper has noted that it lives: who looks says that there is none.
    """
    known = facts.of_jobs(connection, job_ids)
    stored = standings.stored(connection, job_ids)
    fresh = []
    for id, of_job in known.items():
        if of_job.has_reaper:
            before = stored.get(id)
            kind, seconds = (before["kind"], before["seconds"]) if before else ("", 0.0)
            told = _told(of_job, kind, seconds)
            if before is None or not before["fits"] or not _same(told, before):
                fresh.append(told)
    standings.tell(connection, fresh)
    return len(fresh)


def _told(known: Facts, kind_before: str, seconds: float) -> Told:
    found = standing(known, kind_before, seconds)
    for_guest = standing(known.for_guest(), kind_before, seconds)
    return Told(
        known.job_id,
        str(known.state),
        str(found.word),
        found.kind,
        found.sentence,
        for_guest.sentence,
        found.needs_person,
    )


def _same(told: Told, row: Row) -> bool:
    return all(row[name] == value for name, value in asdict(told).items())
