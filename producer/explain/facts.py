"""The facts of `explain`, read from the ledger in one transaction: of one job with all that is said of it, or of many
at once with what decides where each stands.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from nightshift.common.allocation.deadlines import outlook
from nightshift.common.ledger import Connection, Row, audit_log
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.jobs import deadlines, messages
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_facts, job_pace, standing_facts
from nightshift.common.states import JobState
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.explain.reasons import Reason
from nightshift.producer.explain.snapshot import Facts, SetAside, SlotFact


def facts(
    connection: Connection,
    job: Job,
    *,
    tenant: str | None = None,
    here: Here = FLEET,
) -> Facts:
    """What decides whether the job moves; `here` says who works on the ledger. A reader of a `tenant` sees
    no names of others' jobs and people, and none of machines.
    """
    known = of_jobs(connection, [job.id], tenant=tenant, here=here)[job.id]
    pace = job_facts.pace(connection, job.id)
    known = replace(
        known,
        pools=job_facts.pools(connection, job.engine_key),
        rows_per_second=_number(job_pace.of(connection, job.id)["rows_per_second"]),
        part_seconds=pace["seconds_since_part"],
        lease_seconds=pace["oldest_lease_seconds"],
        load_seconds=pace["load_seconds"],
    )
    if tenant is not None:
        return known.for_guest()
    whole = messages.whole(connection, job.id)
    return replace(
        known,
        reason=whole.text(known.reason),
        rest_error=whole.text(known.rest_error) or "",
        watch_error=whole.text(known.watch_error),
        file_left_why=whole.text(known.file_left_why),
    )


def of_jobs(
    connection: Connection,
    job_ids: Collection[int],
    *,
    tenant: str | None = None,
    here: Here = FLEET,
) -> dict[int, Facts]:
    """The facts of those of the jobs that there are, without rates and times of parts, leases and loads. The
    number of questions to the ledger does not grow with that of the jobs. Guests are readers of `tenant`, else of
    the tenant of each job.
    """
    rows = {row["id"]: row for row in standing_facts.jobs(connection, job_ids)}
    seen = standing_facts.reaper_seconds(connection)
    children = standing_facts.children(connection, rows)
    found = {
        id: _own(row, children.get(id, 0), seen, here, tenant or row["tenant"])
        for id, row in rows.items()
    }
    for add in (_with_outages, _with_slots, _with_rest, _with_pauses, _with_deadlines):
        found |= add(connection, found)
    return found


def _own(row: Row, children: int, reaper_seconds: float | None, here: Here, tenant: str) -> Facts:
    """What the ledger knows of the job itself."""
    return Facts(
        job_id=row["id"],
        tenant=tenant,
        priority=row["priority"],
        state=JobState(row["state"]),
        pool=row["pool"],
        engine_key=row["engine_key"],
        reason=row["reason"],
        closed=row["closed"],
        is_archived=row["is_archived"],
        age_seconds=row["age_seconds"],
        finished_seconds=row["finished_seconds"],
        read_at=row["read_at"],
        state_since=row["state_since"],
        moved_at=row["moved_at"],
        here=here,
        rows_total=row["rows_total"],
        rows_over=row["rows_done"] + row["rows_failed"],
        rows_failed=row["rows_failed"],
        pending=row["pending"],
        queued=row["queued"],
        leased=row["leased"],
        max_parallel=row["max_parallel"],
        reaper_seconds=reaper_seconds,
        children_at_work=children,
        has_deadline=row["has_deadline"],
        watch_seconds=row["watch_seconds"],
        watch_error=row["watch_error"],
        files_left=row["files_left"],
        file_left_why=row["file_left_why"],
    )


Found = Mapping[int, Facts]


def _with_outages(connection: Connection, found: Found) -> dict[int, Facts]:
    """Open jobs with what is waited for."""
    open_ids = [id for id, each in found.items() if not each.closed]
    stalled = standing_facts.stalled(connection, open_ids) if open_ids else {}
    away = outages.listed(connection) if stalled else []
    return {
        id: replace(
            found[id], outages=[each for each in away if each.job_id == id], stalled=is_stalled
        )
        for id, is_stalled in stalled.items()
    }


def _with_slots(connection: Connection, found: Found) -> dict[int, Facts]:
    """Jobs that wait with the slots of their pools, and who has these."""
    waiting = _waiting(found)
    if not waiting:
        return {}
    slots: dict[str, list[SlotFact]] = {}
    for row in job_facts.slots(connection, {each.pool for each in waiting}):
        slots.setdefault(row["pool"], []).append(_slot(row))
    empty = {each.pool for each in waiting} - slots.keys()
    seen = standing_facts.workers_seen(connection, empty) if empty else {}
    first = standing_facts.first(connection, [each.job_id for each in waiting])
    aside = loads.set_aside(connection)
    named = {slot.job_id for each in slots.values() for slot in each if slot.job_id}
    tenants = standing_facts.tenants(connection, named | {row["job"] for row in first.values()})
    return {each.job_id: _among(each, slots, seen, first, aside, tenants) for each in waiting}


def _among(
    job: Facts,
    slots: Mapping[str, Sequence[SlotFact]],
    seen: Mapping[str, datetime],
    first: Mapping[tuple[str, str], Row],
    aside: Sequence[Row],
    tenants: Mapping[int, str],
) -> Facts:
    """The job among the slots of its pool and the others that want them."""
    engine = (job.pool, job.engine_key)
    ahead = first.get(engine)
    if ahead is not None and ahead["priority"] <= job.priority:
        ahead = None
    own = slots.get(job.pool, ())
    named = {slot.job_id for slot in own if slot.job_id} | ({ahead["job"]} if ahead else set())
    return replace(
        job,
        slots=own,
        worker_seen_at=seen.get(job.pool),
        set_aside=[
            SetAside(each["host"], each["error"], each["public_error"], float(each["seconds_left"]))
            for each in aside
            if (each["pool"], each["engine_key"]) == engine
        ],
        ahead=None if ahead is None else f"job {ahead['job']} ({ahead['name']})",
        ahead_id=None if ahead is None else ahead["job"],
        ahead_priority=0 if ahead is None else ahead["priority"],
        foreign=frozenset(id for id in named if tenants.get(id) != job.tenant),
    )


def _with_rest(connection: Connection, found: Found) -> dict[int, Facts]:
    """Jobs of which batches wait after an error."""
    ids = [each.job_id for each in _waiting(found) if each.pending]
    resting = standing_facts.resting(connection, ids) if ids else {}
    return {
        id: replace(
            found[id],
            resting=off["batches"],
            rest_seconds=max(0.0, off["seconds"]),
            rest_error=off["error"] or "",
        )
        for id, off in resting.items()
    }


def _with_pauses(connection: Connection, found: Found) -> dict[int, Facts]:
    """Jobs that a person has paused, with who did."""
    ids = [id for id, each in found.items() if each.state is JobState.PAUSED and not each.reason]
    pauses = audit_log.pauses(connection, ids) if ids else {}
    return {
        id: replace(
            found[id],
            paused_by=_who(change, None),
            paused_by_for_guest=_who(change, found[id].tenant),
        )
        for id, change in pauses.items()
    }


def _with_deadlines(connection: Connection, found: Found) -> dict[int, Facts]:
    """Running jobs that have a deadline, with what is expected of it."""
    ids = [id for id, each in found.items() if each.has_deadline and each.state is JobState.RUNNING]
    works = deadlines.works(connection, job_ids=ids) if ids else {}
    paces = job_pace.paces(connection, list(works)) if works else {}
    return {
        id: replace(found[id], outlook=outlook(work, job_pace.likely_eta(paces.get(id))))
        for id, work in works.items()
    }


def _waiting(found: Found) -> list[Facts]:
    """Running jobs of which nothing is at work, and whose batches somebody is to take."""
    return [
        each
        for each in found.values()
        if each.state is JobState.RUNNING
        and each.waiting
        and not each.children_at_work
        and not each.alone
    ]


def as_json(job: Job, reasons: Sequence[Reason]) -> dict[str, object]:
    """The reasons for machines."""
    return {
        "job": job.id,
        "name": job.spec.name,
        "status": str(job.state),
        "reasons": [
            {
                "kind": each.kind,
                "sentence": each.sentence,
                "command": next(iter(each.commands), None),
                "commands": each.commands,
            }
            for each in reasons
        ],
    }


def _who(pause: Mapping[Any, Any], tenant: str | None) -> str:
    """Who paused a job, when, and on which machine. A reader of a `tenant` sees the names of people of that
    tenant only, and no name of a machine.
    """
    last = audit_log.seen_by(pause, tenant)
    place = f" on {last['host']}" if last["host"] and tenant is None else ""
    moment = last["happened_at"].astimezone()
    is_today = moment.date() == datetime.now(moment.tzinfo).date()
    return f"by {last['who']}{place}, {moment:at %H:%M:%S}" + (
        "" if is_today else f"{moment: on %Y-%m-%d}"
    )


def _slot(row: Row) -> SlotFact:
    return SlotFact(
        host=row["host"],
        state=row["state"],
        engine_key=row["engine_key"],
        planned_key=row["planned_key"],
        serves=row["serves"],
        job=row["job_name"],
        job_id=row["job"],
        priority=row["priority"],
        due_seconds=row["due_seconds"],
        child_seconds=row["child_seconds"],
        cordon=row["cordon"],
        cordoned_since=row["cordoned_since"],
    )


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))
