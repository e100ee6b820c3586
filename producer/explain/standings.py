"""Where the jobs of a list stand: as a reaper has told it, else as the facts say now."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nightshift.common.ledger import Connection, Row
from nightshift.common.ledger.queries import standings
from nightshift.common.states import ShownState
from nightshift.producer.advice.here import Here
from nightshift.producer.explain import facts
from nightshift.producer.explain.snapshot import Facts
from nightshift.producer.explain.standing import Standing, standing


def of(
    connection: Connection, rows: Sequence[Any], here: Here, tenant: str | None = None
) -> list[dict[Any, Any]]:
    """Rows of job_progress with their `standing`, and with `waiting` by it; for readers of a `tenant` without names
    of machines, of others' jobs and of people.

    What is told of an open job counts while somebody tells: a row of a reaper that is gone says nothing.
    """
    ids = [row["job"] for row in rows]
    told = standings.stored(connection, ids)
    tellers = standings.tellers(connection)
    is_told = tellers.tell and tellers.has_reaper and not here.nobody
    good = {
        id: _told(row, tenant)
        for id, row in told.items()
        if row["fits"] and (is_told or row["over"])
    }
    missing = [id for id in ids if id not in good]
    now = facts.of_jobs(connection, missing, tenant=tenant, here=here) if missing else {}
    for id, known in now.items():
        seen = known if tenant is None else known.for_guest()
        good[id] = _now(seen, told.get(id), is_told=tellers.tell)
    return [_with(row, good.get(row["job"])) for row in rows]


def _now(known: Facts, before: Row | None, *, is_told: bool) -> Standing:
    """Where a job stands by its facts. Where nobody tells since when, that is as old as the job."""
    found = standing(known)
    if before is not None and before["kind"] == found.kind:
        return replace(standing(known, found.kind, before["seconds"]), since=before["since"])
    return found if is_told else standing(known, found.kind, known.age_seconds)


def _told(row: Row, tenant: str | None) -> Standing:
    sentence = row["sentence"] if tenant is None else row["guest_sentence"]
    word = ShownState(row["word"])
    return Standing(word, row["kind"], sentence, row["needs_person"], row["since"])


def _with(row: Any, found: Standing | None) -> dict[Any, Any]:
    waits = found is not None and found.word is ShownState.WAITS
    return {**row, "standing": found, "waiting": found.sentence if found and waits else None}
