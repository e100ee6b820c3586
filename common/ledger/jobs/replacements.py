"""Which job may be replaced: deleted with its files, so that another job gets its output directory."""

from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.ledger import holds
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.holds import Kind
from nightshift.common.states import JobState

FACTS = text(f"""
    SELECT j.state, j.tenant, j.closed_at IS NOT NULL AS is_closed,
           j.archived_at IS NOT NULL AS is_archived,
           EXISTS (SELECT FROM batches b WHERE b.job_id = j.id AND b.part_name IS NOT NULL) AS has_parts,
           EXISTS (SELECT FROM batches b WHERE b.job_id = j.id AND b.owner IS NOT NULL
                   AND b.state IN ('pending', 'queued', 'leased')) AS is_owned,
           NOT EXISTS (SELECT FROM deletions d WHERE d.job_id = j.id)
               AND NOT ({holds.free(Kind.FINISH, "j.id")} AND {holds.free(Kind.ARCHIVE, "j.id")}) AS is_held,
           EXISTS (SELECT FROM deletions d WHERE d.job_id = j.id AND NOT d.output) AS keeps_files,
           EXISTS (SELECT FROM table_commits t WHERE t.job_id = j.id)
               OR EXISTS (SELECT FROM api_batches p WHERE p.job_id = j.id) AS is_needed
    FROM jobs j WHERE j.id = :id
""")
"""What decides whether a job may be replaced. A deletion that has begun holds the archive of its job for good."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the ledger knows of a job: whether a batch has an owner (`is_owned`), which may still commit; whether a
    process finishes or archives the job (`is_held`); whether a table or a batch of the HTTP API has rows of it
    (`is_needed`); whether a deletion that keeps the files of the job has begun (`keeps_files`), after which the ledger
    may not know its parts any more.
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
    """Why a job cannot be replaced. `passes` says that this may be over in a moment."""

    why: str
    passes: bool = False


def refusal(facts: Facts, tenant: str) -> Refusal | None:
    """Return why a job of `tenant` cannot replace the job with these facts; None if it can."""
    if facts.state not in (JobState.FAILED, JobState.CANCELLED):
        return Refusal(f"it is {facts.state}, neither failed nor cancelled")
    if facts.tenant != tenant:
        return Refusal("it is a job of another tenant")
    if facts.keeps_files:
        return Refusal("it is being deleted without its files, which may have rows")
    if facts.has_parts:
        return Refusal("rows of it are in its output directory")
    if facts.is_archived:
        return Refusal("it is archived")
    if facts.is_needed:
        return Refusal("a table or a batch of the HTTP API has rows of it")
    if facts.is_owned:
        return Refusal("a worker still holds batches of it", passes=True)
    if facts.is_held:
        return Refusal("a reaper finishes or archives it, or waits to try that again", passes=True)
    if not facts.is_closed:
        return Refusal("its files are not finished yet", passes=True)
    return None


def facts(connection: Connection, job_id: int) -> Facts | None:
    """Return the facts about a job now; None for no job."""
    found = connection.execute(FACTS, {"id": job_id}).mappings().one_or_none()
    return None if found is None else Facts(**{**found, "state": JobState(found["state"])})
