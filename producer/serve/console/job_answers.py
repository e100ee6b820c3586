"""What the page of a job knows of its answers: their lengths, and their labels."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import answer_counts
from nightshift.common.ledger.jobs.answer_counts import JobAnswers

LOOK_SECONDS, MOST_JOBS = 5.0, 1000


class AnswersSeen:
    """The answers of jobs, read anew once a job has more of them, and not more often than LOOK_SECONDS: a job may
    have had thousands of children, each with its own counts.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[int, tuple[float, int, JobAnswers]] = OrderedDict()

    def of(self, ledger: Ledger, row: Mapping[str, Any]) -> JobAnswers:
        """The answers of a job, by its row of job_progress."""
        job, done, now = row["job"], row["rows_done"], time.monotonic()
        known = self._seen.get(job)
        if known is None or (known[1] != done and now - known[0] > LOOK_SECONDS):
            with ledger.transaction() as connection:
                known = self._seen[job] = now, done, answer_counts.of_job(connection, job)
            self._seen.move_to_end(job)
            while len(self._seen) > MOST_JOBS:
                self._seen.popitem(last=False)
        return known[2]
