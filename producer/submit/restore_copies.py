"""Copies of the input of a job that are gone, converted or sorted, are made again before rows are read again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import input_copies, output_schema
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.states import JobState

log = structlog.get_logger(__name__)


def restore(
    ledger: Ledger,
    job: Job,
    *,
    also_answered: bool = False,
    allowed: Callable[[Connection], object] = lambda _: None,
    settings: Settings | None = None,
) -> None:
    """Makes the copies again that rows without an answer are read from, or with `also_answered` all rows.
    Takes as long as a submit of the job's input where a copy is gone, else a listing of one folder.

    Tables are opened by `settings`, else by those of the environment. `allowed` is asked before that work begins, and may raise. What cannot be made again, since its file
    has changed or is gone, is left out with a line in the log: rows without their input die when they run.
    Raises StorageUnavailable.
    """
    if job.state is JobState.CANCELLED:
        return
    with ledger.transaction() as connection:
        progress = jobs.progress(connection, job.id)
        files = jobs.files(connection, job.id)
    if not also_answered and progress["rows_done"] == progress["rows_total"]:
        return
    to_convert, to_sort = _gone(job, files)
    if not to_convert and not to_sort:
        return
    with ledger.transaction() as connection:
        allowed(connection)
    with storage.within(job.roots, storage.OF_JOB):
        _make(job, to_convert, to_sort, settings)


def _gone(
    job: Job, files: Sequence[SourceFile]
) -> tuple[list[SourceFile], dict[str, list[SourceFile]]]:
    """The files whose converted copy is gone, and sorted copies that are gone, each with its files."""
    converted = [input_copies.copy_of(job.spec.input, job.output_uri, file) for file in files]
    ordered: dict[str, list[SourceFile]] = {}
    for file in files:
        if file.arranged is not None:
            ordered.setdefault(file.arranged, []).append(file)
    if not ordered and not any(converted):
        return [], {}
    there = input_copies.there(job.output_uri)
    to_convert = [
        file
        for file, copy in zip(files, converted, strict=True)
        if copy is not None and file.rows and copy not in there
    ]
    return to_convert, {uri: own for uri, own in ordered.items() if uri not in there}


def _make(
    job: Job,
    to_convert: Sequence[SourceFile],
    to_sort: dict[str, list[SourceFile]],
    settings: Settings | None,
) -> None:
    # DuckDB and Arrow are loaded here, where a copy is gone, and nowhere else by a server.
    from nightshift.common.formats.convert import Converter
    from nightshift.producer.submit import table_input
    from nightshift.producer.submit.arrange import arrange

    converter = Converter(job.spec.input, job.output_uri, table_input.copier(settings))
    for file in to_convert:
        with _left_out(job, file.uri):
            converter.restore([file])
    for uri, files in to_sort.items():
        with _left_out(job, uri):
            arrange.restore(job.spec, files, output_schema.deserialize(job.input_schema))


@contextmanager
def _left_out(job: Job, uri: str) -> Iterator[None]:
    """What cannot be made again keeps nothing else back."""
    try:
        yield
    except BadInput as error:
        log.warning("copy_is_gone", job_id=job.id, uri=uri, error=str(error))
