"""Decide whether `--replace` may delete a job, so that another job can use its output directory."""

from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.holds import Kind
from nightshift.common.states import JobState

FACTS = text(f"""
    SELECT j.state, j.tenant, j.closed_at IS NOT NULL AS is_closed,
           j.archived_at IS NOT NULL AS is_archived,
           -- The part of a dead batch may be its error part, which no attempt committed.
           EXISTS (SELECT FROM batches b WHERE b.job_id = j.id AND b.part_name IS NOT NULL AND b.state <> 'dead')
               OR EXISTS (SELECT FROM attempts a WHERE a.job_id = j.id AND a.outcome IN ('done', 'split'))
               AS has_parts,
           EXISTS (SELECT FROM batches b WHERE b.job_id = j.id AND b.owner IS NOT NULL
                   AND b.state IN ('pending', 'queued', 'leased')) AS is_owned,
           NOT EXISTS (SELECT FROM deletions d WHERE d.job_id = j.id)
               AND NOT ({holds.free(Kind.FINISH, "j.id")} AND {holds.free(Kind.ARCHIVE, "j.id")}) AS is_held,
           EXISTS (SELECT FROM deletions d WHERE d.job_id = j.id AND NOT d.output) AS keeps_files,
           EXISTS (SELECT FROM table_commits t WHERE t.job_id = j.id)
               OR EXISTS (SELECT FROM api_batches p WHERE p.job_id = j.id) AS is_needed
    FROM jobs j WHERE j.id = :id
""")
"""The state of a job that `refusal` needs. A deletion in progress keeps the archive hold of its job, which is not
counted as `is_held`.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """State of a job in the ledger.

    `has_parts`: an attempt committed a part; error parts of dead batches do not count. `is_owned`: a batch has an owner,
    which may still commit. `is_held`: a reaper is finishing or archiving the job. `is_needed`: a table or a batch of
    the HTTP API refers to its rows. `keeps_files`: a deletion without `--output` has begun, so that `has_parts` may be
    false although parts exist.
    """

    state: JobState
    tenant: str
    is_closed: bool
    has_parts: bool = False
    is_owned: bool = False
    is_held: bool = False
    is_archived: bool = False
    is_needed: bool = False
    keeps_files: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a job cannot be replaced. `is_temporary`: it may no longer apply after a short wait."""

    reason: str
    is_temporary: bool = False


def refusal(facts: Facts, tenant: str) -> Refusal | None:
    """Return the reason why a job of `tenant` cannot replace a job in this state; None if it can."""
    if facts.state not in (JobState.FAILED, JobState.CANCELLED):
        return Refusal(f"it is {facts.state}, neither failed nor cancelled")
    if facts.tenant != tenant:
        return Refusal("it is a job of another tenant")
    if facts.keeps_files:
        return Refusal("it is being deleted, and its files are kept")
    if facts.has_parts:
        return Refusal("it has committed rows")
    if facts.is_archived:
        return Refusal("it is archived")
    if facts.is_needed:
        return Refusal("a table or a batch of the HTTP API refers to its rows")
    if facts.is_owned:
        return Refusal("a worker still holds batches of it", is_temporary=True)
    if facts.is_held:
        return Refusal(
            "a reaper is finishing or archiving it, or will retry that within an hour",
            is_temporary=True,
        )
    if not facts.is_closed:
        return Refusal("its files are not finished yet", is_temporary=True)
    return None


def facts(connection: Connection, job_id: int) -> Facts | None:
    """Return the state of a job; None if there is no such job."""
    found = connection.execute(FACTS, {"id": job_id}).mappings().one_or_none()
    return None if found is None else Facts(**{**found, "state": JobState(found["state"])})
