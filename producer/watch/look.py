"""One look at the watched input of a job: what is new, what changed, what is planned now. A file is taken
after two equal looks.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.formats.reading import CutOff, NoRoom
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.holds import Hold
from nightshift.common.ledger.jobs import jobs, messages, watches
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.jobs.watches import DueLook, UnplannedFile
from nightshift.common.public_text import marked, private
from nightshift.common.settings import Settings
from nightshift.common.storage import FileInfo, Listing
from nightshift.producer import wings
from nightshift.producer.reaper.duty import Duty, Reaper
from nightshift.producer.reaper.renewed_hold import renewed
from nightshift.producer.submit.append import append
from nightshift.producer.submit.append_command import listed, within_job
from nightshift.producer.submit.changes import changes, judge_look
from nightshift.producer.submit.table_input import TableListing

log = structlog.get_logger(__name__)

EVENTS = {
    "waiting": "input_file_waits",
    "refused": "input_file_refused",
    "changed": "input_file_changed",
    "gone": "input_file_gone",
}
"""Events of the log for a file that is not as planned."""


PAUSE_SECONDS = 1.0
"""Pause between two rounds of looks."""

THREADS = 4
"""Looks at once, each of another tenant: a slow look holds up its own tenant alone, up to this many."""

LOOK_SECONDS = 600.0
"""Longest time in which a look reads the files of one append of a tenant; more files are then tried in halves."""

TOO_LONG = f"{{}} takes more than {LOOK_SECONDS / 60:g} minutes to read: give it in smaller files"
"""The reason stored for a file that a look did not read within LOOK_SECONDS."""


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Beside the rounds, since listings and plans take their time."""
    look = partial(look_once, reaper.ledger, reaper.settings, reaper.name)
    return [Duty("make_looks", PAUSE_SECONDS, look, threads=THREADS)]


def look_once(ledger: Ledger, settings: Settings, who: str = "reaper") -> bool:
    """Makes the look that is most overdue; False where none is due.

    An input that cannot be listed, or a file that does not fit, stops nothing: the ledger says so. A look
    that another reaper has taken over writes nothing.
    """
    with ledger.transaction() as connection:
        due = watches.take_due(connection, who)
        job = None if due is None else jobs.get(connection, due.job_id)
    if due is None or job is None:
        return False
    with renewed(ledger, due.hold):
        try:
            with within_job(job, settings):
                found = listed(ledger, job, [], settings)
                noted, listing = _look(ledger, job, due, found, settings)
        except NightshiftError as error:
            log.warning("look_failed", job_id=job.id, error=str(error))
            with ledger.transaction() as connection:
                if not watches.is_looking(connection, due.hold):
                    return True
                watches.end_look(connection, due.hold, files=None, listing=None, error=error)
            return True
        with ledger.transaction() as connection:
            if not watches.is_looking(connection, due.hold):
                return True
            if noted is not None:
                watches.set_unplanned(connection, job.id, noted)
            now = jobs.get(connection, job.id)
            if now is None or now.retries != job.retries:
                # A command may have taken meanwhile what this look noted: the next one compares again.
                listing = None
            files = len(found.files)
            watches.end_look(connection, due.hold, files=files, listing=listing, error=None)
    return True


def _look(
    ledger: Ledger, job: Job, due: DueLook, found: Listing, settings: Settings
) -> tuple[dict[str, UnplannedFile] | None, str | None]:
    """Plans the files that were the same in two looks. Returns what is noted now, None where nothing
    can have changed since the last look, and the hash of the listing.
    """
    stopped = found.stopped if isinstance(found, TableListing) else None
    listing = _hash([*found.files, *([stopped[0]] if stopped else [])])
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
        taken, left = _append_fitting(ledger, job, judged.ripe, due.hold, settings)
        for info in taken:
            del noted[info.uri]
        with ledger.transaction() as connection:
            for uri, why in left.waiting.items():
                kept = messages.stored(connection, job.id, why)
                noted[uri] = replace(noted[uri], why=kept)
            for uri, why in left.refused.items():
                kept = messages.stored(connection, job.id, why)
                noted[uri] = replace(noted[uri], state="refused", why=kept)
    if stopped is not None:
        info, why = stopped
        with ledger.transaction() as connection:
            kept = messages.stored(connection, job.id, why)
        noted[info.uri] = UnplannedFile(
            info.uri, info.size, info.fingerprint, "refused", due.now, kept
        )
    _log_new(job, noted, before)
    if found.again and listing != due.listing:
        log.info("input_linked_twice", job_id=job.id, remark=found.remark)
    return noted, listing


@dataclass(frozen=True, slots=True)
class Left:
    """The files that an append did not add, with the reasons: those that exceed the tenant's limit for now, and those
    that were refused.
    """

    waiting: Mapping[str, NightshiftError] = field(default_factory=dict)
    refused: Mapping[str, NightshiftError] = field(default_factory=dict)

    def __or__(self, other: "Left") -> "Left":
        return Left({**self.waiting, **other.waiting}, {**self.refused, **other.refused})


def _append_fitting(
    ledger: Ledger, job: Job, infos: Sequence[FileInfo], look: Hold, settings: Settings
) -> tuple[Sequence[FileInfo], Left]:
    """Append the files that fit; return them, and the others with the reasons. If an append fails or takes too long,
    each half of its files is tried alone, since reading the files one by one costs a request to the store each.
    """
    try:
        with _bounds(ledger, job, settings):
            added = append(ledger, job, infos, "input", look=look, settings=settings)
        empty = frozenset(added.empty)
    except (BadInput, CutOff) as error:
        if len(infos) == 1:
            uri = infos[0].uri
            if isinstance(error, NoRoom):
                return [], Left(waiting={uri: NightshiftError(f"{private(uri)}: {marked(error)}")})
            too_long = NightshiftError(TOO_LONG.format(private(uri)))
            return [], Left(refused={uri: too_long if isinstance(error, CutOff) else error})
        half = len(infos) // 2
        first, left = _append_fitting(ledger, job, infos[:half], look, settings)
        second, also_left = _append_fitting(ledger, job, infos[half:], look, settings)
        return [*first, *second], left | also_left
    return [info for info in infos if info.uri not in empty], Left(
        refused={uri: NightshiftError(f"{private(uri)} has no rows") for uri in empty}
    )


@contextmanager
def _bounds(ledger: Ledger, job: Job, settings: Settings) -> Iterator[None]:
    """Holds an append to what wings allow whoever the job belongs to."""
    until = time.monotonic() + LOOK_SECONDS
    with ExitStack() as stack:
        for growing in wings.offered("growing"):
            stack.enter_context(growing(ledger, job, settings, lambda: time.monotonic() > until))
        yield


def _hash(infos: Sequence[FileInfo]) -> str:
    found = hashlib.sha256()
    for info in infos:
        found.update(
            f"{info.uri}\0{info.size}\0{info.fingerprint}\n".encode(errors="surrogatepass")
        )
    return found.hexdigest()


def _log_new(job: Job, noted: dict[str, UnplannedFile], before: dict[str, UnplannedFile]) -> None:
    """Log each file that changed, disappeared, was refused or first exceeded the tenant's limit since the last look."""
    for file in noted.values():
        known = before.get(file.uri)
        is_new = known is None or (known.state, known.facts) != (file.state, file.facts)
        if file.state == "waiting":
            is_new = file.why is not None and (is_new or known is None or known.why is None)
        if is_new:
            log.warning(EVENTS[file.state], job_id=job.id, uri=file.uri, error=file.why)
