"""`nightshift submit --append`: files that a person names, or what is new in a job's own input, become rows
of the job; changed files are named, and stay as they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.jobs import job_submit, watches
from nightshift.common.ledger.jobs.generations import Source
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.settings import Settings
from nightshift.common.spec.table_uris import names_table
from nightshift.common.states import JobState
from nightshift.common.storage import Listing
from nightshift.common.text import counted, counted_batches, first_few, left_out_rows
from nightshift.producer import under_way
from nightshift.producer.advice.advice import Need, goes_on, nobody_works
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.submit import table_input
from nightshift.producer.submit.append import append
from nightshift.producer.submit.changes import Changes, changes
from nightshift.producer.submit.growing import refuse
from nightshift.producer.submit.intake import NOTHING, Appended


@dataclass(frozen=True, slots=True)
class Taken:
    """Result of an append command: the append, and the changed files, which it skipped. `stopped` says that it ended the
    watch of the input; `linked_twice` is the remark of the listing.
    """

    appended: Appended
    changed: list[str]
    stopped: bool = False
    linked_twice: str | None = None


def take(
    ledger: Ledger,
    job: Job,
    uris: Sequence[str],
    settings: Settings,
    *,
    last: bool = False,
) -> Taken:
    """Append the new files among `uris`, or without any those of the job's own input. `last` ends the watch of the input.

    Raises BadInput for files that cannot be taken; then nothing is appended.
    """
    with within_job(job, settings):
        return _taken(ledger, job, uris, settings, last)


@contextmanager
def within_job(job: Job, settings: Settings) -> Iterator[None]:
    """Holds what is opened inside to the roots of this process and to those of the job."""
    with (
        storage.within(settings.allowed_roots or None, storage.SETTING),
        storage.within(job.roots, storage.OF_JOB),
    ):
        yield


def _taken(ledger: Ledger, job: Job, uris: Sequence[str], settings: Settings, last: bool) -> Taken:
    refuse(job)
    under_way.wait(ledger, job.id)
    listing = listed(ledger, job, uris, settings)
    found = _changes(ledger, job, listing, by_name=bool(uris))
    source: Source = "files" if uris else "input"
    appended = NOTHING
    if found.new:
        appended = append(ledger, job, found.new, source, settings=settings)
    stopped = last and _stop(ledger, job)
    changed = [info.uri for info in found.changed]
    return Taken(appended, changed, stopped, listing.remark)


def _stop(ledger: Ledger, job: Job) -> bool:
    with ledger.transaction() as connection:
        # The lock of appends: a look that is under way adds its files before this, or none.
        job_submit.lock(connection, job.identity)
        stopped = watches.stop(connection, job.id)
        if stopped:
            audit_log.record(connection, "watch", job.id, detail={"seconds": None})
    return stopped


def summary(job: Job, taken: Taken, here: Here = FLEET) -> list[str]:
    """What became of an append, a sentence a line, and the next command."""
    name, added = f"job {job.id} ({job.spec.name})", taken.appended
    said = []
    if added.generation is not None:
        said.append(
            f"{name} has {counted(added.rows, 'row')} more in {counted_batches(added.batches)}: generation "
            f"{added.generation}, new files: {added.files:,}"
            + (f"; {left_out_rows(added.rows_left_out)}" if added.rows_left_out else "")
        )
    if said and job.state is JobState.PAUSED:
        said[-1] += f"; {goes_on(Need.RESUME, here, job)}"
    elif said:
        said[-1] += f"; {nobody_works(here, job) or f'`nightshift wait {job.id}` waits for it'}"
    if taken.appended.empty:
        said.append(f"left out until they have rows: {first_few(taken.appended.empty, 3)}")
    if not said:
        said.append(f"{name} has no new files: nothing is added")
    if taken.stopped:
        said.append(f"{name} watches its input no longer, and closes when its rows are done")
    if taken.changed:
        said.append(
            f"changed since job {job.id} planned them: {first_few(taken.changed, 3)}; their rows stay "
            "as they are; the spec of the job, submitted with --new and another output directory, runs them again"
        )
    if taken.linked_twice is not None:
        said.append(taken.linked_twice)
    return said


def _changes(ledger: Ledger, job: Job, listing: Listing, *, by_name: bool) -> Changes:
    """How files differ from those of the job: of files that a command names, none is gone."""
    own = job.output_uri.rstrip("/") + "/"
    for info in listing.files:
        if info.uri.startswith(own):
            raise BadInput(
                f"the input {private(info.uri)} lies inside the output directory {private(own)}"
            )
    with ledger.transaction() as connection:
        planned = watches.all_planned_facts(connection, job.id)
        elsewhere = watches.named_files(connection, job.id)
    if by_name:
        # One of them may be planned by another path, and is the same version then.
        facts = {(info.size, info.fingerprint) for info in listing.files}
        names = {info.uri for info in listing.files}
        planned = {uri: each for uri, each in planned.items() if uri in names or each in facts}
        elsewhere = set(planned)
    return changes(listing.as_planned(planned), planned, elsewhere)


def listed(ledger: Ledger, job: Job, uris: Sequence[str], settings: Settings) -> Listing:
    """The files that a command names, or else those of the job's own input, within the roots of this process and
    of the job.
    """
    if named := list(filter(names_table, uris)):
        raise BadInput(
            f"{named[0]} is a table: a job takes files, and newer versions of its own table"
        )
    if not uris and job.spec.input.table is not None:
        storage.check_roots(job.spec.input.places, settings.allowed_roots)
        storage.check_held(job.spec.input.places, job.roots, storage.OF_JOB)
        return table_input.grown(ledger, job, settings)
    uris = uris or job.spec.input.uris
    uris = [storage.resolve(uri) for uri in uris]
    storage.check_roots(uris, settings.allowed_roots)
    storage.check_held(uris, job.roots, storage.OF_JOB)
    listing = storage.listing(uris)
    # A link below an allowed folder may lead out of it.
    storage.check_roots([info.uri for info in listing.files], settings.allowed_roots)
    return listing
