"""The facts of `explain`, read from the ledger in one transaction."""

from collections.abc import Sequence

from nightshift.common.ledger import Connection, Row, audit_log
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.jobs import jobs, watches
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_facts, job_pace
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
    no names of others' jobs and people.
    """
    row = job_pace.of(connection, job.id)
    pace = job_facts.pace(connection, job.id)
    off = jobs.backing_off(connection, job.id)
    ahead = job_facts.ahead(connection, job.id)
    aside = loads.set_aside(connection, job.spec.pool)
    watch = watches.status(connection, job.id)
    slots = job_facts.slots(connection, job.spec.pool)
    named = {each["job"] for each in slots if each["job"]} | ({ahead["job"]} if ahead else set())
    return Facts(
        job_id=job.id,
        state=job.state,
        pool=job.spec.pool,
        engine_key=job.spec.engine_key,
        reason=job.reason or _who_paused(connection, job, tenant),
        closed=job.closed_at is not None,
        here=here,
        pools=job_facts.pools(connection, job.spec.engine_key),
        outages=outages.listed(connection, job.id),
        is_guest=tenant is not None,
        rows_total=row["rows_total"],
        rows_over=row["rows_done"] + row["rows_failed"],
        rows_failed=row["rows_failed"],
        pending=row["batches_pending"],
        queued=row["batches_queued"],
        leased=row["batches_leased"],
        max_parallel=pace["max_parallel"],
        rows_per_second=_number(row["rows_per_second"]),
        stands=row["stands"],
        reaper_seconds=pace["reaper_seconds"],
        part_seconds=pace["seconds_since_part"],
        lease_seconds=pace["oldest_lease_seconds"],
        children_at_work=pace["children_at_work"],
        load_seconds=pace["load_seconds"],
        resting=off["batches"],
        rest_seconds=max(0.0, off["seconds"] or 0.0),
        rest_error=off["error"] or "",
        slots=[_slot(each) for each in slots],
        set_aside=[
            SetAside(each["host"], each["error"], float(each["seconds_left"]))
            for each in aside
            if each["engine_key"] == job.spec.engine_key
        ],
        ahead=None if ahead is None else f"job {ahead['job']} ({ahead['name']})",
        ahead_id=None if ahead is None else ahead["job"],
        ahead_priority=0 if ahead is None else ahead["priority"],
        hidden=job_facts.foreign(connection, tenant, named),
        watch_seconds=None if watch is None else watch["every_seconds"],
        watch_error=None if watch is None else watch["error"],
    )


def as_json(job: Job, reasons: Sequence[Reason]) -> dict[str, object]:
    """The reasons for machines."""
    return {
        "job": job.id,
        "name": job.spec.name,
        "status": str(job.state),
        "reasons": [
            {"kind": each.kind, "sentence": each.sentence, "command": each.command or None}
            for each in reasons
        ],
    }


def _who_paused(connection: Connection, job: Job, tenant: str | None) -> str | None:
    """Who paused a job, when, and on which machine; None for a job that is not paused, or by no person. A reader
    of a `tenant` sees the names of people of that tenant only, and no name of a machine.
    """
    if job.state is not JobState.PAUSED:
        return None
    changes = audit_log.of_job(connection, job.id, tenant)
    pauses = [each for each in changes if each["action"] == "pause"]
    if not pauses:
        return None
    last = pauses[-1]
    place = f" on {last['host']}" if last["host"] and tenant is None else ""
    return f"by {last['who']}{place}, at {last['happened_at'].astimezone():%H:%M:%S}"


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
    )


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))
