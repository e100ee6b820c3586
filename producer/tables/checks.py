"""What is refused at submit, while no row has run: a table that cannot be had, or that the parts do not fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import output_schema
from nightshift.common.formats.parquet.column_types import written_schema
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import table_commits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.common.states import JobState
from nightshift.common.text import first_few
from nightshift.producer.submit.append_command import within_job
from nightshift.producer.tables import commit
from nightshift.producer.tables.data_files import PartsOfTable
from nightshift.producer.tables.table import Seen, Table


def check_spec(spec: JobSpec, settings: Settings) -> None:
    """BadInput for what can be said of the table without the columns of the input: its place, its package, its
    catalog.
    """
    if spec.output.table is not None:
        _looked_at(spec, settings)


@dataclass(frozen=True, slots=True)
class _Noted:
    """Notes the version that the table has at submit, with the job."""

    base: str | None

    def __call__(self, connection: Connection, job_id: int) -> None:
        table_commits.note(connection, job_id, self.base)


def check_job(
    spec: JobSpec, inputs: pa.Schema, settings: Settings
) -> Callable[[Connection, int], None] | None:
    """The same, and BadInput for columns that do not fit; where only the first answers say the columns, those that
    are known. Returns what notes the version of the table with the job.
    """
    if spec.output.table is None:
        return None
    table, seen = _looked_at(spec, settings)
    whole = output_schema.output_schema(spec, inputs)
    known = output_schema.bare_schema(spec, inputs) if whole is None else whole
    mode = spec.output.table.mode
    # Columns that only the first answers say may be those that the table has beside the known ones.
    merges = mode == "merge" and whole is not None
    why = table.misfit(
        seen, written_schema(known), replaces=mode in ("overwrite", "merge"), merges=merges
    )
    if why is not None:
        raise BadInput(f"the rows do not fit the table {private(spec.output.table.title)}: {why}")
    own = f"{spec.output.uri}/"
    if any(name.startswith(own) for name in table.names(seen)):
        raise BadInput(
            f"the table {private(spec.output.table.title)} has files in {private(spec.output.uri)} already, which a new job would write "
            "over: name another output directory"
        )
    return _Noted(seen.version)


def _looked_at(spec: JobSpec, settings: Settings) -> tuple[Table, Seen]:
    assert spec.output.table is not None
    table = commit.table_of(spec.output.table, settings)
    root = spec.output.table.uri
    if root is not None and not spec.output.uri.startswith(f"{root}/"):
        raise BadInput(
            f"output.uri {private(spec.output.uri)} does not lie below the table {private(root)}, whose files its parts become: say "
            f"output.uri: {private(f'{root}/_jobs/{spec.name}')}"
        )
    seen = table.look()
    storage.check_roots(table.places(seen), settings.allowed_roots)
    return table, seen


def check_retry(
    ledger: Ledger,
    job: Job,
    settings: Settings,
    *,
    lost: Sequence[str] = (),
    overtake: bool = False,
) -> None:
    """BadInput for a retry whose new answers could not take the place of the old ones, since the table has not the
    parts any more that the ledger put there: parts with failed rows, or those that are `lost`. With `overtake` a job
    whose first commit was refused goes on with the table as it is now.
    """
    if job.spec.output.table is None:
        return
    with within_job(job, settings):
        gone = _gone(ledger, job, settings, lost, overtake=overtake)
        # Once more: a commit of the job between the look at the table and the question to the ledger takes parts out,
        # too.
        if gone:
            gone = _gone(ledger, job, settings, lost, overtake=overtake)
    if gone:
        raise BadInput(
            f"{first_few(gone, 3)} of job {job.id} {'is' if len(gone) == 1 else 'are'} no file of the table "
            f"{private(job.spec.output.table.title)} any more, since somebody compacted, changed or deleted rows there: new "
            "answers could not take the place of the old ones; submit the rows as a job of their own"
        )


def _gone(
    ledger: Ledger, job: Job, settings: Settings, lost: Sequence[str], *, overtake: bool
) -> list[str]:
    """The files of parts whose rows run again that the table lacks, although the ledger put them there; TableTaken
    while a commit is open.
    """
    assert job.spec.output.table is not None
    table = commit.table_of(job.spec.output.table, settings)
    seen = table.look()
    with ledger.transaction() as connection:
        table_commits.refuse_under_way(connection, job.id)
        has = table_commits.run_again(connection, job.id, lost)
        last = table_commits.last(connection, job.id)
        was_refused = last is not None and last.state == "refused"
        has_none = table_commits.last_done(connection, job.id) is None
        # Whoever runs such a job again was told what the table has by now.
        if overtake and has_none and was_refused and job.state is JobState.FAILED:
            table_commits.note(connection, job.id, seen.version)
    if job.spec.output.table.mode == "merge" or not has:
        return []
    names = table.names(seen)
    return [uri for uri in PartsOfTable.of(job).places(has) if uri not in names]
