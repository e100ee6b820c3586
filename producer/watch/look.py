"""One look at the input of a job: what is new, what changed, what is planned now.

A command looks once and takes what is there. A reaper looks again and again at a watched input, and
takes a file after two equal looks.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog

from nightshift.common import storage
from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.jobs import job_submit, jobs, watches
from nightshift.common.ledger.jobs.generations import Source
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.jobs.watches import DueLook, UnplannedFile
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo, Listing
from nightshift.common.text import first_few
from nightshift.producer.advice.advice import Need, goes_on, nobody_works
from nightshift.producer.advice.here import FLEET, Here
from nightshift.producer.submit.append import (
    NOTHING,
    Appended,
    append,
    refuse,
)
from nightshift.producer.submit.changes import Changes, changes, judge_look
from nightshift.producer.submit.redo import redo_changed

log = structlog.get_logger(__name__)

HOLD_SECONDS = 60.0
"""How long one reaper has a look to itself. Two looks at once do no harm and cost a listing."""


EVENTS = {
    "refused": "input_file_refused",
    "changed": "input_file_changed",
    "gone": "input_file_gone",
}
"""What the log says of a file that is not as planned."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a command took: an append, changed files that it left as they are, and those that were
    `redone`, whose rows run again. `stopped` says that it ended the watch of the input, `linked_twice` what
    the listing remarks.
    """

    appended: Appended
    changed: list[str]
    redone: list[str]
    redone_rows: int = 0
    stopped: bool = False
    linked_twice: str | None = None


def take(
    ledger: Ledger,
    job: Job,
    uris: Sequence[str],
    settings: Settings,
    *,
    redo: bool = False,
    last: bool = False,
) -> Taken:
    """Appends the new files among `uris`, or those of the job's own input without any. With `redo`
    the rows of changed files run again; with `last` nobody looks at the input after this.

    Raises BadInput for files that cannot be taken; then nothing is appended.
    """
    with _within(job, settings):
        return _taken(ledger, job, uris, settings, redo, last)


@contextmanager
def _within(job: Job, settings: Settings) -> Iterator[None]:
    """Holds what is opened inside to the roots of this process and to those of the job."""
    with (
        storage.within(settings.allowed_roots or None, storage.SETTING),
        storage.within(job.roots, storage.OF_JOB),
    ):
        yield


def _taken(
    ledger: Ledger, job: Job, uris: Sequence[str], settings: Settings, redo: bool, last: bool
) -> Taken:
    refuse(job)
    listing = _listed(job, uris or job.spec.input.uris, settings)
    found = _changes(ledger, job, listing, by_name=bool(uris))
    rows = redo_changed(ledger, job, found.changed) if redo and found.changed else 0
    source: Source = "files" if uris else "input"
    appended = NOTHING
    if found.new:
        appended = append(ledger, job, found.new, source, by_command=True)
    stopped = last and _stop(ledger, job)
    changed = [info.uri for info in found.changed]
    left, redone = ([], changed) if redo else (changed, [])
    return Taken(appended, left, redone, rows, stopped, listing.remark)


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
            f"{name} has {added.rows:,} rows more in {added.batches:,} batches: generation "
            f"{added.generation}, new files: {added.files:,}"
        )
    if taken.redone:
        said.append(
            f"{name}: the {taken.redone_rows:,} rows of what changed run again: "
            f"{first_few(taken.redone, 3)}"
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
            f"as they are, and `nightshift submit --append {job.id} --redo-changed` runs them again"
        )
    if taken.linked_twice is not None:
        said.append(taken.linked_twice)
    return said


def _changes(ledger: Ledger, job: Job, listing: Listing, *, by_name: bool) -> Changes:
    """How files differ from those of the job: of files that a command names, none is gone."""
    own = job.output_uri.rstrip("/") + "/"
    for info in listing.files:
        if info.uri.startswith(own):
            raise BadInput(f"the input {info.uri} lies inside the output directory {own}")
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


def _listed(job: Job, uris: Sequence[str], settings: Settings) -> Listing:
    uris = [storage.resolve(uri) for uri in uris]
    storage.check_roots(uris, settings.allowed_roots)
    storage.check_held(uris, job.roots, storage.OF_JOB)
    listing = storage.listing(uris)
    # A link below an allowed folder may lead out of it.
    storage.check_roots([info.uri for info in listing.files], settings.allowed_roots)
    return listing


def look_once(ledger: Ledger, settings: Settings) -> bool:
    """Makes the look that is most overdue; False where none is due.

    An input that cannot be listed, or a file that does not fit, stops nothing: the ledger says so.
    """
    with ledger.transaction() as connection:
        due = watches.take_due(connection, HOLD_SECONDS)
        job = None if due is None else jobs.get(connection, due.job_id)
    if due is None or job is None:
        return False
    try:
        with _within(job, settings):
            found = _listed(job, job.spec.input.uris, settings)
            noted, listing = _look(ledger, job, due, found)
    except NightshiftError as error:
        log.warning("look_failed", job_id=job.id, error=str(error))
        with ledger.transaction() as connection:
            watches.end_look(connection, job.id, files=None, listing=None, error=str(error))
        return True
    with ledger.transaction() as connection:
        if noted is not None:
            watches.set_unplanned(connection, job.id, noted)
        now = jobs.get(connection, job.id)
        if now is None or now.retries != job.retries:
            # A command may have taken meanwhile what this look noted: the next one compares again.
            listing = None
        watches.end_look(connection, job.id, files=len(found.files), listing=listing, error=None)
    return True


def _look(
    ledger: Ledger, job: Job, due: DueLook, found: Listing
) -> tuple[dict[str, UnplannedFile] | None, str | None]:
    """Plans the files that were the same in two looks. Returns what is noted now, None where nothing
    can have changed since the last look, and the hash of the listing.
    """
    listing = _hash(found.files)
    with ledger.transaction() as connection:
        waits = bool(watches.unplanned(connection, job.id, "waiting", 1))
        if listing == due.listing and not waits:
            return None, listing
        before = {file.uri: file for file in watches.unplanned(connection, job.id)}
        planned = watches.all_planned_facts(connection, job.id)
        elsewhere = watches.named_files(connection, job.id)
    now = changes(found.as_planned(planned), planned, elsewhere)
    judged = judge_look(due.now, due.every_seconds, now, before)
    noted = dict(judged.noted)
    if judged.ripe:
        taken, refused = _append_fitting(ledger, job, judged.ripe)
        for info in taken:
            del noted[info.uri]
        for uri, why in refused.items():
            noted[uri] = replace(noted[uri], state="refused", why=why)
    _log_new(job, noted, before)
    if found.again and listing != due.listing:
        log.info("input_linked_twice", job_id=job.id, remark=found.remark)
    return noted, listing


def _append_fitting(
    ledger: Ledger, job: Job, infos: Sequence[FileInfo]
) -> tuple[Sequence[FileInfo], dict[str, str]]:
    """Appends the files that fit. Returns those, and why each of the others is refused. Halves are tried
    by themselves until what does not fit is alone, since files that are read one by one wait for the
    store each.
    """
    try:
        empty = frozenset(append(ledger, job, infos, "input").empty)
    except BadInput as error:
        if len(infos) == 1:
            return [], {infos[0].uri: str(error)}
        half = len(infos) // 2
        first, refused = _append_fitting(ledger, job, infos[:half])
        second, also_refused = _append_fitting(ledger, job, infos[half:])
        return [*first, *second], refused | also_refused
    return [info for info in infos if info.uri not in empty], {
        uri: f"{uri} has no rows" for uri in empty
    }


def _hash(infos: Sequence[FileInfo]) -> str:
    found = hashlib.sha256()
    for info in infos:
        found.update(
            f"{info.uri}\0{info.size}\0{info.fingerprint}\n".encode(errors="surrogatepass")
        )
    return found.hexdigest()


def _log_new(job: Job, noted: dict[str, UnplannedFile], before: dict[str, UnplannedFile]) -> None:
    """A line for each file that changed, went or was refused since the last look."""
    for file in noted.values():
        known = before.get(file.uri)
        is_new = known is None or (known.state, known.facts) != (file.state, file.facts)
        if is_new and file.state != "waiting":
            log.warning(EVENTS[file.state], job_id=job.id, uri=file.uri, error=file.why)
