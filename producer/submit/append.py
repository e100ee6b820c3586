"""Append: files that came after the submit become the next generation of a job, or nothing."""

from collections.abc import Sequence

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.holds import Hold
from nightshift.common.ledger.jobs.generations import Source
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings, load_settings
from nightshift.common.storage import FileInfo
from nightshift.producer.submit.intake import Appended, Growth, Intake, take_in


def append(
    ledger: Ledger,
    job: Job,
    infos: Sequence[FileInfo],
    source: Source,
    *,
    look: Hold | None = None,
    settings: Settings | None = None,
) -> Appended:
    """Plans new files and stores them as the next generation; a job that was over runs again. What
    somebody asked for stands in the audit log; what a `look` found is left out once the watch has ended, or
    somebody else looks.

    Their rows are numbered behind the last row of the job. Appends of one job wait for each other under
    the lock of its submit; the row of the job is held only for the end of the transaction. Files that the
    job has by now are left out, and files without a row. Raises BadInput where the files cannot be read or
    do not fit, for a file that changed since it was planned, and for a job that cannot grow.
    """
    intake = Intake(
        job.spec,
        settings or load_settings(),
        given_ledger=ledger,
        growth=Growth(job, source, look),
        files=infos,
    )
    take_in(intake)
    assert isinstance(intake.answer, Appended)
    return intake.answer
