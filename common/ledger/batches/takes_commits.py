"""Which jobs still take commits: those that are not over, and those that are over until a reaper finishes them."""

from nightshift.common.ledger.holds import Kind

TAKES_COMMITS = f"""
    (j.state IN ('running', 'paused') OR j.closed_at IS NULL AND NOT EXISTS (
        SELECT FROM holds h
        WHERE h.kind = '{Kind.FINISH}' AND h.subject = CAST(j.id AS text) AND h.until >= j.finished_at))
"""
"""SQL, of a job `j`. After a cancel the owner of a lease commits the rows that it has finished. That ends with the first
reaper that finishes the job: its hold is committed before it asks whether a batch is leased, and a hold from before
the end of the job had run out by then.
"""
