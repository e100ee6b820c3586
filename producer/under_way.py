"""Changes of a job wait while its rows are on their way into a table."""

import time

from nightshift.common.errors import TableTaken
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import table_commits

MOST_SECONDS = 30.0
"""How long a command waits for a reaper that commits."""

PAUSE_SECONDS = 0.2


def wait(ledger: Ledger, job_id: int) -> None:
    """Returns once no commit of the job is open; TableTaken where one stays open. The change that follows asks again
    in its own transaction: a commit may have begun meanwhile.
    """
    until = time.monotonic() + MOST_SECONDS
    while True:
        try:
            with ledger.transaction() as connection:
                table_commits.refuse_under_way(connection, job_id)
        except TableTaken:
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return
