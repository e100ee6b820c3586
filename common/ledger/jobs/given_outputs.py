"""A failed job without an answer gives its output directory to another job, and never runs again.

The row of the failed job stays, with its errors and its reason. Its `output_uri` and its `identity` change to ones
that no other job can have, so that nothing that is done with the failed job reaches the files of the other.
"""

from dataclasses import dataclass

from sqlalchemy import text

from nightshift.common.errors import BadInput
from nightshift.common.ledger import audit_log, holds
from nightshift.common.ledger.batches import leasing
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.holds import Kind
from nightshift.common.ledger.jobs import job_submit
from nightshift.common.states import JobState

FACTS = text("""
    SELECT j.state, j.tenant, j.closed_at IS NOT NULL AS is_closed,
           EXISTS (SELECT FROM deletions d WHERE d.job_id = j.id) AS is_deleted,
           EXISTS (SELECT FROM job_archives a WHERE a.job_id = j.id AND a.state <> 'kept') AS is_away,
           EXISTS (SELECT FROM batches b WHERE b.job_id = j.id AND b.state = 'leased') AS is_leased,
           EXISTS (SELECT FROM batches b WHERE b.job_id = j.id
                   AND (b.state = 'done' OR b.part_name IS NOT NULL)) AS has_parts,
           EXISTS (SELECT FROM table_commits t WHERE t.job_id = j.id)
               OR EXISTS (SELECT FROM api_batches p WHERE p.job_id = j.id) AS is_needed
    FROM jobs j WHERE j.id = :id
""")
"""What decides whether a job gives its output directory up."""

FREE = text("""
    UPDATE jobs SET output_uri = output_uri || ' (given up by job ' || id || ')',
           identity = identity || ' (given up by job ' || id || ')'
    WHERE id = :id
""")
"""Names that no other job can have."""

NOTE = text("""
    UPDATE jobs SET output_to = :to, reason = concat_ws('; ', reason, 'its output directory went to job ' || CAST(:to AS text))
    WHERE id = :id
""")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the ledger knows of a job that has an output directory. `is_away` says that its batches are in an archive,
    `is_needed` that a table or a batch of the OpenAI API stands on the job.
    """

    state: JobState
    tenant: str
    is_closed: bool
    is_deleted: bool = False
    is_away: bool = False
    is_leased: bool = False
    has_parts: bool = False
    is_needed: bool = False


def gives(facts: Facts, tenant: str) -> bool:
    """Whether a job gives its output directory to a job of this tenant. A job that is not closed has files that a
    reaper looks at, or a worker that may still commit.
    """
    kept = (facts.is_deleted, facts.is_away, facts.is_leased, facts.has_parts, facts.is_needed)
    is_over = facts.state is JobState.FAILED and facts.is_closed
    return is_over and facts.tenant == tenant and not any(kept)


def facts(connection: Connection, job_id: int) -> Facts | None:
    """The facts about a job now; None for no job."""
    found = connection.execute(FACTS, {"id": job_id}).mappings().one_or_none()
    return None if found is None else Facts(**{**found, "state": JobState(found["state"])})


@dataclass(frozen=True, slots=True)
class Giver:
    """A failed job that gives its directory up. Attempts of the next job are numbered from `attempts` on: no part of
    the two has the same name, so a late writer or sweep of the failed job meets no part of the other.
    """

    job_id: int
    output_uri: str
    attempts: int


def lock(connection: Connection, job_id: int, output_uri: str, identity: str, tenant: str) -> Giver:
    """Locks a job with this output and identity, until the end of the transaction, and judges once more whether it
    gives its directory up; BadInput where it does not any more. The lock of the submit comes before, as everywhere.
    """
    job_submit.lock(connection, identity)
    loads.lock(connection, job_id)  # before the row of the job, as a retry does
    own = text("SELECT true FROM jobs WHERE id = :id AND output_uri = :uri FOR UPDATE")
    is_there = connection.scalar(own, {"id": job_id, "uri": output_uri})
    found = facts(connection, job_id)
    if not is_there or found is None or not gives(found, tenant):
        raise BadInput(
            f"job {job_id}, whose output directory {output_uri} is, was retried, deleted or replaced at this moment: "
            "submit again"
        )
    last = text("SELECT coalesce(max(attempt), 0) FROM batches WHERE job_id = :id")
    return Giver(job_id, output_uri, int(connection.scalar(last, {"id": job_id}) or 0))


def give_up(connection: Connection, giver: Giver) -> None:
    """Frees the output and the identity of the job, under its lock. The job that gets them follows in the same
    transaction, and `note_taker` after it.
    """
    # A process that still finishes the job writes nothing more, and no late owner commits.
    holds.end(connection, Kind.FINISH, giver.job_id)
    leasing.take_owners(connection, giver.job_id)
    connection.execute(FREE, {"id": giver.job_id})


def note_taker(connection: Connection, giver: Giver, job_id: int) -> None:
    """Writes which job has the directory now, and behind which number the attempts of that job begin. Its batches
    are inserted after this.
    """
    connection.execute(NOTE, {"id": giver.job_id, "to": job_id})
    if giver.attempts:
        begun = {"id": job_id, "attempts": giver.attempts}
        connection.execute(text("UPDATE jobs SET first_attempt = :attempts WHERE id = :id"), begun)
    given = {"output": giver.output_uri, "to": job_id}
    audit_log.record(connection, "give output", giver.job_id, detail=given)
