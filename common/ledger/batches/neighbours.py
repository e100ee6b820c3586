"""Affinity: before a claim, the batches that follow those of a child come to the front of its queue.

Rows of an arranged job that share a beginning stand in neighbouring batches. An engine that had the
ones before still has the beginning in its prefix cache.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import text

from nightshift.common.ledger.batches.records import LONE_LOSSES, Claimant
from nightshift.common.ledger.connection import Connection

MOST_READ = 1_000
"""Queued batches of a job that are looked at to find a new place: the next in line."""

HEAD = text("""
    SELECT job_id, seq, attempt > 0 AS tried FROM batches
    WHERE queue = :queue AND state = 'queued'
    ORDER BY priority DESC, rank, id LIMIT :most
""")
"""The batches of a queue that are next in line."""

BEFORE = text("""
    SELECT state = 'leased' AND owner <> :owner FROM batches
    WHERE job_id = :job AND seq < :seq AND state NOT IN ('queued', 'split')
    ORDER BY seq DESC, state = 'leased' DESC LIMIT 1
""")
"""Whether another child holds the batch that stands before a run of queued ones."""

FOLLOWING = text("""
    SELECT seq FROM batches
    WHERE job_id = :job AND seq > :after AND seq <= :after + :most AND state = 'queued'
      AND queue = :queue AND losses < :lone_losses
    ORDER BY seq
""")
"""Which of the numbers that follow are queued."""

QUEUED = text("""
    SELECT seq FROM (
        SELECT seq FROM batches
        WHERE queue = :queue AND state = 'queued' AND job_id = :job AND losses < :lone_losses
        ORDER BY priority DESC, rank, id LIMIT :most) AS next
    ORDER BY seq
""")
"""The queued batches of a job, in the order of the job."""

HELD = text("""
    SELECT seq FROM batches
    WHERE job_id = :job AND seq = ANY (CAST(:seqs AS int[])) AND state = 'leased' AND owner <> :owner
""")
"""Which of these numbers another child holds."""

SWAP = text("""
    WITH taken AS MATERIALIZED (
        -- Who is locked is being claimed, or on the way out of the queue.
        SELECT id, seq, rank FROM batches
        WHERE job_id = :job AND seq = ANY (CAST(:seqs AS int[])) AND state = 'queued'
          AND queue = :queue AND losses < :lone_losses
          AND attempt = 0
        ORDER BY id FOR UPDATE SKIP LOCKED
    ), ranks AS (
        SELECT rank, row_number() OVER (ORDER BY rank, id) AS place FROM taken
    ), wishes AS (
        SELECT id, row_number() OVER (ORDER BY seq < :start, seq, id) AS place FROM taken
    )
    UPDATE batches b SET rank = ranks.rank
    FROM wishes JOIN ranks USING (place)
    WHERE b.id = wishes.id AND b.rank <> ranks.rank
""")
"""Gives the lowest ranks of these batches to those from `start` on."""


def bring_forward(
    connection: Connection, who: Claimant, last: Mapping[int, int], most: int
) -> None:
    """Lets the next claim of a child continue where its claim before ended. `last` gives, by job id, the number
    (`seq`) of the last batch that the child has claimed of an arranged job. At most `most` batches come forward.

    Batches of one job change places among themselves, so that every other job keeps its turn. A batch
    that is locked stays where it is. So does a batch that was tried before, and one where no other child
    continues: each claim would put such a batch behind newer ones, until the end of the job.
    """
    if not last:
        return
    head = connection.execute(HEAD, {"queue": who.queue, "most": most}).all()
    for job_id in last.keys() & {batch.job_id for batch in head}:
        fresh = [batch.seq for batch in head if batch.job_id == job_id and not batch.tried]
        if fresh:
            _bring_forward(connection, who, job_id, fresh, last[job_id])


def _bring_forward(
    connection: Connection, who: Claimant, job_id: int, head: Sequence[int], last: int
) -> None:
    if head[0] == last + 1:
        return
    asked = {"queue": who.queue, "job": job_id, "lone_losses": LONE_LOSSES}
    queued = connection.scalars(FOLLOWING, {**asked, "after": last, "most": len(head)}).all()
    start: int | None = last + 1
    if start not in queued:
        queued = connection.scalars(QUEUED, {**asked, "most": MOST_READ}).all()
        before = [run[0] - 1 for run in runs(queued)]
        held = connection.scalars(HELD, {"job": job_id, "seqs": before, "owner": who.owner}).all()
        start = new_start(queued, held)
    if start is None or not _others_go_on(connection, who, job_id, head, start):
        return
    at = bisect_left(queued, start)
    seqs = {*head, *queued[at : at + len(head)]}
    connection.execute(SWAP, {**asked, "seqs": sorted(seqs), "start": start})


def _others_go_on(
    connection: Connection, who: Claimant, job_id: int, head: Sequence[int], start: int
) -> bool:
    """Whether another child is at work right before the next in line, if that stands before `start`."""
    first = min(head)
    if first >= start:
        return True
    asked = {"job": job_id, "seq": first, "owner": who.owner}
    return bool(connection.scalar(BEFORE, asked))


def new_start(queued: Sequence[int], held: Collection[int]) -> int | None:
    """Where a child begins whose next batch is gone. `queued` are the numbers of queued batches, ascending; None
    is returned where there are none. `held` are the numbers right before a run of queued batches that another
    child has: that child is likely to continue there.

    The child begins at the first run that no other child continues, else in the middle of the longest.
    """
    stretches = runs(queued)
    free = next((run for run in stretches if run[0] - 1 not in held), None)
    if free is not None:
        return free[0]
    longest = max(stretches, key=len, default=None)
    return None if longest is None else longest[len(longest) // 2]


def runs(numbers: Sequence[int]) -> list[range]:
    """The stretches of numbers without a gap; the numbers ascend, and may be there twice."""
    found: list[range] = []
    for number in numbers:
        if found and number <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, number + 1))
        else:
            found.append(range(number, number + 1))
    return found
