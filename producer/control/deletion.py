"""Delete: a closed job leaves the ledger for good, and its files the output directory if wanted.

Files go before the row of the job, so that nobody else has the directory meanwhile. A command that was
cut off is given again, and goes on.
"""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from nightshift.common import storage
from nightshift.common.errors import BadInput, LeaseLost, StorageUnavailable
from nightshift.common.formats import input_copies, owner_marker, part_names
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.jobs import deletions, jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import marked, private
from nightshift.common.settings import Settings
from nightshift.common.text import counted, counted_batches, first_few
from nightshift.producer import under_way, wings
from nightshift.producer.control.answer import Answer
from nightshift.producer.reaper import finish, manifest, output_directory
from nightshift.producer.results import part_files
from nightshift.producer.submit import owned_files
from nightshift.producer.submit.output_owner import OwnedDirectory


def delete(
    ledger: Ledger,
    job: Job,
    settings: Settings,
    *,
    output: bool,
    allowed: Callable[[Connection], object] = lambda _: None,
) -> Answer:
    """Deletes a job that is over; with `output` also exactly the files that the ledger, its archive
    and the manifest name, and our own marker. `allowed` is called under the row lock of the job, before anything goes.

    Raises BadInput for a job that is not over, and for an output directory that does not name the
    job as its owner; DeleteRefused where the store keeps a file.
    """
    under_way.wait(ledger, job.id)
    with ledger.transaction() as connection:
        goes_on = deletions.takes_output(connection, job.id)
    if output and not goes_on:
        storage.hold(job.output_uri, settings.allowed_roots)
        _refuse_unowned(ledger, job)
    if job.state.over and job.closed_at is None:
        finish.finish(ledger, job.id, settings)
    in_use = in_use_of(ledger, job, settings) if output or goes_on else set()
    with ledger.transaction() as connection:
        output, is_new = deletions.begin(connection, job.id, output=output, allowed=allowed)
        figures = _figures(jobs.progress(connection, job.id))
        if is_new:
            detail = {
                **figures,
                "name": job.spec.name,
                "output": job.output_uri if output else None,
            }
            audit_log.record(connection, "delete", job.id, detail=detail)
    kept = 0
    files, left = 0, []
    if output:
        files = _delete_files(ledger, job, in_use)
        kept = sum(storage.exists(uri, links=False) for uri in in_use)
        left = [name for name in _left(job) if part_names.final(job.output_uri, name) not in in_use]
    while _deleted_page(ledger, job.id):
        pass
    with ledger.transaction() as connection:
        deletions.end(connection, job.id)
    figures |= {"files": files, "files_left": len(left), "files_in_table": kept}
    return Answer("delete", job.label, job.id, {}, _then(job, output, figures, left), figures)


def _figures(progress: object) -> dict[str, object]:
    values: dict[str, object] = dict(progress)  # type: ignore[call-overload]
    return {"rows": values["rows_total"], "batches": values["batches_total"]}


def _then(job: Job, output: bool, figures: dict[str, Any], left: Sequence[str]) -> str:
    gone = f"deleted, {counted(figures['rows'], 'row')} in {counted_batches(figures['batches'])}"
    if not output:
        return f"{gone}; its files stay in {job.output_uri}"
    files = f"{gone}, and {counted(figures['files'], 'file')}"
    if figures["files_in_table"]:
        files += f" (its table needs {figures['files_in_table']:,} more, which stay)"
    if left:
        return f"{files}; {first_few(left, 3)} in {job.output_uri} are none of its files and stay"
    return f"{files} in {job.output_uri}"


def _deleted_page(ledger: Ledger, job_id: int) -> bool:
    with ledger.transaction() as connection:
        return deletions.delete_page(connection, job_id)


def _refuse_unowned(ledger: Ledger, job: Job) -> None:
    """BadInput unless the marker says that the directory is this job's."""
    directory = OwnedDirectory.of_job(ledger, job)
    found = directory.marker()
    if found != directory.owner:
        whose = (
            "has no owner marker" if found is None else "belongs to another job or ledger by now"
        )
        raise BadInput(
            f"{private(job.output_uri)} {whose}: delete the files there yourself, and the job without --output"
        )


def in_use_of(ledger: Ledger, job: Job, settings: Settings) -> set[str]:
    """Files of the job that stay, as URIs, since somebody else reads them."""
    found = (ask(ledger, job, settings) for ask in wings.offered("files_in_use"))
    return set().union(*found)


def _delete_files(ledger: Ledger, job: Job, in_use: Container[str]) -> int:
    """Deletes the files of the job but those in use, its marker last; returns how many. Without the marker it
    deletes nothing: an earlier call came to the end of this.
    """
    if not OwnedDirectory.of_job(ledger, job).is_owned():
        return 0
    uris = [uri for uri in files_of(ledger, job) if uri not in in_use]
    try:
        for uri in owned_files.held(ledger, job, uris):
            storage.delete(uri)
    except LeaseLost as lost:
        raise BadInput(marked(lost)) from lost
    with ledger.transaction() as connection:
        jobs.lock(connection, job.id)
        output_directory.warn_left(job, storage.delete_all(output_directory.left_by_killed(job)))
        for folder in storage.OWN_FOLDERS:
            storage.remove_directory(part_names.final(job.output_uri, folder))
        storage.delete(owner_marker.place(job.output_uri))
        storage.remove_directory(job.output_uri)
    return len(uris) + 1


def files_of(ledger: Ledger, job: Job) -> Iterator[str]:
    """The files that the job has written and that are still there, the manifest after the parts."""
    named = set(part_names_of(ledger, job))
    for place in (part_names.final, part_names.staged):
        for name in storage.list_names(place(job.output_uri, "")):
            if name in named:
                yield place(job.output_uri, name)
    for name in storage.list_names(part_names.staged(job.output_uri, "")):
        # These parts are of attempts that never counted. The names and the folder are ours, so the parts may go.
        if part_names.is_staged(name) and name not in named:
            yield part_names.staged(job.output_uri, name)
    with ledger.transaction() as connection:
        archived = deletions.archived_files(connection, job.id)
        sources = jobs.files(connection, job.id)
    own = [part_names.archived(job.output_uri, name) for name in archived]
    generations = part_names.final(job.output_uri, part_names.GENERATIONS)
    own += [
        f"{generations}/{name}"
        for name in storage.list_names(generations)
        if re.fullmatch(r"\d{6,}\.json", name)
    ]
    for source in sources:
        if source.uri.startswith(part_names.final(job.output_uri, f"{part_names.JUDGED}/")):
            own.append(source.uri)
        copy = input_copies.copy_of(job.spec.input, job.output_uri, source)
        if copy is not None:
            own.append(copy)
    own += {source.arranged for source in sources if source.arranged is not None}
    own.append(part_names.final(job.output_uri, part_names.MANIFEST))
    yield from (uri for uri in own if storage.exists(uri, links=False))


def part_names_of(ledger: Ledger, job: Job) -> Iterator[str]:
    """Names of the live parts, from the ledger, and from the manifest where batches left for files."""
    yield from (name for name, _ in part_files.kept_names(ledger, job))
    yield from manifest.part_names_in(job)


def _left(job: Job) -> list[str]:
    """What is still in the directory: files and folders of somebody else."""
    try:
        return storage.list_names(job.output_uri)
    except (BadInput, StorageUnavailable):
        return []
