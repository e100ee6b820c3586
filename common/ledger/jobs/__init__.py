"""A job in the ledger: submitted, looked up, paused, resumed, cancelled, judged, closed."""

from nightshift.common.ledger.jobs.closing import (
    OpenWork,
    abandon,
    close,
    finishable,
    open_work,
)
from nightshift.common.ledger.jobs.lookup import by_output, files, find, get, listed, progress
from nightshift.common.ledger.jobs.records import Job, NewJob
from nightshift.common.ledger.jobs.states import (
    cancel,
    fail,
    judge_anew,
    lock,
    lock_shared,
    pause,
    reopen,
    resume,
    try_lock_shared,
)
from nightshift.common.ledger.jobs.submit import insert, insert_batches
from nightshift.common.ledger.jobs.verdict import (
    JUDGE_AFTER_ROWS,
    fix_output_schema,
    judge_failures,
)

__all__ = [
    "JUDGE_AFTER_ROWS",
    "Job",
    "NewJob",
    "OpenWork",
    "abandon",
    "by_output",
    "cancel",
    "close",
    "fail",
    "files",
    "find",
    "finishable",
    "fix_output_schema",
    "get",
    "insert",
    "insert_batches",
    "judge_anew",
    "judge_failures",
    "listed",
    "lock",
    "lock_shared",
    "open_work",
    "pause",
    "progress",
    "reopen",
    "resume",
    "try_lock_shared",
]
