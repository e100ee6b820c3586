"""When the rows that failed pause a job: too large a share of them, or all refused in the same words."""

from typing import Any

from sqlalchemy import Row, text

from nightshift.common.ledger.connection import Connection
from nightshift.common.states import JobState

JUDGE_AFTER_ROWS = 200
"""Rows that are over before a job's share of failed rows is judged; of an arranged job, where rows that fail
alike are neighbours, a tenth of those that were left, if that is more."""

REFUSED = "the engine refused"
"""How the reason of a pause by refused rows begins."""

ALIKE_AFTER_ROWS = 20
"""Rows that are refused in the same words, none having an answer, before they pause a job that has more."""

FAILED_SHARE = text("""
    SELECT sum(c.rows_failed) - j.judged_failed AS failed,
           sum(c.rows_done + c.rows_failed) - j.judged_done - j.judged_failed AS over,
           j.max_failed_fraction AS allowed,
           greatest(:least, (sum(c.rows_total) - j.judged_done - j.judged_failed) / 10
               * (SELECT (arranged IS NOT NULL)::int FROM input_files
                  WHERE job_id = j.id ORDER BY file_index LIMIT 1)) AS least
    FROM jobs j JOIN job_counters c ON c.job_id = j.id WHERE (j.id, j.state) = (:id, :state) GROUP BY j.id
""")
"""Failed rows, and rows that are over, since a job is counted; its limit, and after how many rows."""

REFUSED_ALIKE = f"""
    CASE WHEN j.spec -> 'task' ->> 'kind' <> 'requests' AND EXISTS (
        SELECT FROM job_counters WHERE job_id = j.id
        HAVING sum(rows_done) = 0 AND sum(rows_failed) > j.judged_failed
           AND (sum(rows_failed) - j.judged_failed >= {ALIKE_AFTER_ROWS}
                OR sum(rows_total - rows_done - rows_failed) = 0)
    ) THEN (
        SELECT f.message FROM (
            SELECT kind, message FROM row_errors
            WHERE job_id = j.id AND failed_at > coalesce(j.judged_at, '-infinity') LIMIT 1) AS f
        WHERE f.kind = 'refused' AND NOT EXISTS (
            SELECT FROM row_errors e
            WHERE e.job_id = j.id AND e.failed_at > coalesce(j.judged_at, '-infinity')
              AND (e.kind, e.message) <> (f.kind, f.message))
    ) END
"""
"""The words in which the engine refused all rows of job j that failed since the job is counted; null where the
job has an answer, too few rows failed, or the words differ. Always null for an API batch, which ends with a line
of error for each of its rows. The first two rows with different errors end the search.
"""

ALIKE = text(f"""
    SELECT message, (SELECT sum(rows_failed) FROM job_counters WHERE job_id = :id) - judged_failed AS failed
    FROM (SELECT j.judged_failed, {REFUSED_ALIKE} AS message FROM jobs j
          WHERE (j.id, j.state) = (:id, :state)) AS found
    WHERE message IS NOT NULL
""")
"""The message of those rows, and how many they are."""


def share_above_limit(connection: Connection, job_id: int, state: JobState) -> Row[Any] | None:
    """The share of failed rows of a job in this state, where it is above the limit of the job."""
    given = {"id": job_id, "state": state, "least": JUDGE_AFTER_ROWS}
    share = connection.execute(FAILED_SHARE, given).one_or_none()
    if share is None or share.over < share.least:
        return None
    return share if share.failed > share.allowed * float(share.over) else None


def refused_alike(connection: Connection, job_id: int, state: JobState) -> Row[Any] | None:
    """How many rows the engine refused (`failed`), and in which words (`message`). None unless the job is in this
    state and has no answer, and all rows that ran since it is counted, 20 or the whole job, were refused in the
    same words.
    """
    return connection.execute(ALIKE, {"id": job_id, "state": state}).one_or_none()
