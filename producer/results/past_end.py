"""What a submit or a run finds of a job that is over: when the job ended, which files of its function
changed since its rows ran, and which parts of its output are gone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.states import JobState
from nightshift.common.text import counted, first_few, plural
from nightshift.producer.results import part_files
from nightshift.producer.views.versions import HOW_TO_UNIFY, by_version, versions


@dataclass(frozen=True, slots=True)
class PastEnd:
    """How a job stands that was over when somebody asked for it again.

    `changed` are files of its function, `lost` says of its output what is gone and what brings it back,
    `versions` are the rows of each version, if there are several.
    """

    job_id: int
    state: JobState
    at: datetime
    changed: Sequence[str]
    lost: str | None
    versions: str | None

    @property
    def ended(self) -> str:
        """When the job ended, and that this was all."""
        return f"job {self.job_id} was {self.state} on {self.at.astimezone():%Y-%m-%d %H:%M}; nothing ran"

    @property
    def warnings(self) -> list[str]:
        """Sentences that warn a user who expects answers of the input and the code as they are now."""
        found = [] if self.lost is None else [self.lost]
        if self.changed:
            found.append(
                f"the function's code changed since its rows ran: {first_few(self.changed, 5)}; "
                "another output directory (`--out`) runs all rows with the code as it is now"
            )
        return found

    @property
    def remarks(self) -> list[str]:
        """The warnings and the versions, for commands that print no summary of the job."""
        return [*self.warnings, *([] if self.versions is None else [self.versions])]


def of(ledger: Ledger, job: Job, folders: Sequence[str]) -> PastEnd | None:
    """How a job ended that was completed or cancelled; None for any other job. Files of its function are
    looked for in `folders`.
    """
    if job.state not in (JobState.COMPLETED, JobState.CANCELLED):
        return None
    with ledger.transaction() as connection:
        known = versions(connection, job.id)
    at = job.finished_at or job.closed_at or job.created_at
    changed = changed_files([each.code for each in known.found], folders)
    return PastEnd(job.id, job.state, at, changed, lost(ledger, job), known.text)


def code_remarks(ledger: Ledger, job: Job, folders: Sequence[str]) -> list[str]:
    """Remarks for the user of a job that goes on or grows: that the code of its function changed since rows of it
    ran, and how many rows each version made. The files are those in `folders`.
    """
    with ledger.transaction() as connection:
        known = versions(connection, job.id)
    remarks = []
    changed = changed_files([each.code for each in known.found], folders)
    if changed:
        rows = sum(each.rows for each in known.found if changed_files([each.code], folders))
        remarks.append(
            f"{counted(rows, 'row')} of job {job.id} ran with another version of {first_few(changed, 5)}: rows that "
            "run from now on have the code as it is now"
        )
    if counts := by_version(known.found):
        remarks.append(f"rows by version of {counts}")
    return [*remarks[:-1], f"{remarks[-1]}; {HOW_TO_UNIFY}"] if remarks else []


def lost(ledger: Ledger, job: Job) -> str | None:
    """What of the output of a completed job is gone, and what brings it back; None where nothing is.

    The parts of an archived job are not counted: its manifest stands for them.
    """
    if job.state is not JobState.COMPLETED:
        return None
    with ledger.transaction() as connection:
        row = jobs.progress(connection, job.id)
    if row["archived_at"] is not None:
        manifest = part_names.final(job.output_uri, part_names.MANIFEST)
        gone = not storage.exists(manifest)
        what = f"the manifest of job {job.id} is"
    else:
        parts = len(part_files.missing(ledger, job))
        gone, what = (
            parts > 0,
            f"{counted(parts, 'part')} of job {job.id} {plural(parts, 'is', 'are')}",
        )
    return f"{what} gone from {job.output_uri}: {part_files.way_back(job)}" if gone else None


def refuse_lost(ledger: Ledger, job: Job) -> None:
    """BadInput for a completed job whose output is gone."""
    if (why := lost(ledger, job)) is not None:
        raise BadInput(why)


def changed_files(known: Sequence[Mapping[str, str]], folders: Sequence[str]) -> list[str]:
    """Files whose digest differs from every version of the code in `known`, which has digests by path. The list is
    empty where no file of the code lies in the folders: the code is somewhere else.
    """
    now = {name: _digest(name, folders) for version in known for name in version}
    if not any(now.values()):
        return []
    return sorted(
        {name for version in known for name, digest in version.items() if now[name] != digest}
    )


def _digest(name: str, folders: Sequence[str]) -> str | None:
    """SHA-256 of the first file of this name below a folder."""
    for folder in folders:
        with suppress(OSError):
            return hashlib.sha256(Path(folder, name).read_bytes()).hexdigest()
    return None
