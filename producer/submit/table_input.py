"""A table as the input of a job: which version of it, what the job reads of that, and what newer versions add.

The wing that reads tables is asked for all of it (`input_table` in `producer/wings.py`). Data files that a job can
read as they are become its files; all else is copied once, as rows of CSV are.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats.format import Copy
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.jobs import input_versions, jobs, watches
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.settings import Settings, load_settings
from nightshift.common.spec import InputSpec, JobSpec
from nightshift.common.spec.table_uris import names_table, table_rows
from nightshift.common.storage import FileInfo, Listing
from nightshift.producer import wings


@dataclass(frozen=True, slots=True)
class Added:
    """What versions after one have added to a table: the files of each, oldest first, for rows that a job does
    not have yet. `until` is the last version that was looked at and whose rows can be taken; `stopped` the
    version behind it whose rows cannot, and why.
    """

    files: Sequence[FileInfo]
    until: int
    stopped: tuple[int, BadInput] | None = None


class InputTable(Protocol):
    """A table, open. What it opens is held to the roots around the caller. Its methods raise BadInput and
    StorageUnavailable.
    """

    def identity(self) -> str:
        """The id of the table: one that is made anew under its name has another id."""

    def newest(self) -> int:
        """The newest version; BadInput for a table that never had one."""

    def check(self, version: int) -> None:
        """BadInput for a version that is not there, or is there no longer."""

    def files(
        self, version: int, spec_input: InputSpec, columns: Sequence[str] | None
    ) -> list[FileInfo]:
        """What a job that reads these columns (None: all) reads of a version: data files, or the version itself
        where they cannot be read as they are.
        """

    def added(
        self, after: int, columns: Sequence[str] | None, is_known: Callable[[str], bool]
    ) -> Added:
        """What the versions after one have added, without what the job knows."""

    def copy(
        self, info: FileInfo, spec_input: InputSpec, limit: int | None, sink: BinaryIO
    ) -> None:
        """Writes the copy of rows of the table, in an order that is the same each time."""


@dataclass(frozen=True, slots=True)
class TableListing(Listing):
    """What a job reads of a table; `stopped` is the version whose rows it cannot take, with the reason."""

    stopped: tuple[FileInfo, BadInput] | None = field(default=None)

    @property
    def remark(self) -> str | None:
        """Why the job takes no further version; None where it can."""
        return None if self.stopped is None else str(self.stopped[1])


def opened(uri: str, settings: Settings) -> InputTable:
    """The table of an input. Raises BadInput where there is none, or nobody here reads tables."""
    for open_table in wings.offered("input_table"):
        found: InputTable = open_table(uri, settings)
        return found
    raise BadInput(
        f"{private(uri)} is a table, and this installation reads none: producer/tables is missing"
    )


def copier(settings: Settings | None = None) -> Copy:
    """Copies what is read of tables so; opens a table when it is asked to."""

    def copy(info: FileInfo, spec_input: InputSpec, limit: int | None, sink: BinaryIO) -> None:
        rows = table_rows(info.uri)
        assert rows is not None
        opened(rows.table, settings or load_settings()).copy(info, spec_input, limit, sink)

    return copy


def pinned(spec: JobSpec, table: InputTable, ledger: Ledger | None) -> JobSpec:
    """The spec with the version that is read: the one that it names; that of the job which has the output
    directory, where the spec is the same otherwise; else the newest.
    """
    if spec.input.version is not None:
        return spec
    if ledger is not None:
        with ledger.transaction() as connection:
            job = jobs.by_output(connection, spec.output.uri)
        if job is not None:
            same = _at(spec, job.spec.input.version)
            if same.identity == job.spec_identity:
                return same
    return _at(spec, table.newest())


def _at(spec: JobSpec, version: int | None) -> JobSpec:
    return spec.model_copy(update={"input": spec.input.model_copy(update={"version": version})})


@dataclass(frozen=True, slots=True)
class Noted:
    """Notes with a new job which table it reads."""

    version: int
    table_id: str

    def __call__(self, connection: Connection, job_id: int) -> None:
        """In the transaction that stores the job."""
        input_versions.note(connection, job_id, self.version, self.table_id)


def listed(spec: JobSpec, table: InputTable, settings: Settings, ledger: Ledger | None) -> Listing:
    """What the job of a spec reads of its version, or has planned already."""
    known = None
    if ledger is not None:
        with ledger.transaction() as connection:
            known = jobs.by_output(connection, spec.output.uri)
    if known is not None and ledger is not None and known.spec_identity == spec.identity:
        return Listing(_planned(ledger, known), {})
    version = spec.input.version
    assert version is not None
    table.check(version)
    return Listing(_held(table.files(version, spec.input, _columns(spec)), settings), {})


def newer(ledger: Ledger, table: InputTable, job_id: int) -> str | None:
    """A remark where newer versions of a table have rows that its job does not have, or cannot take."""
    with ledger.transaction() as connection:
        job = jobs.get(connection, job_id)
    assert job is not None
    try:
        taken, found = _added(ledger, job, table, {info.uri for info in _planned(ledger, job)})
    except BadInput as error:
        return str(error)  # what the job has goes on
    if found.files:
        return (
            f"job {job_id} has read version {taken} of {job.spec.input.table}, and the newest is "
            f"{table.newest()}: `nightshift submit --append {job_id}` takes what is new"
        )
    return None if found.stopped is None else str(found.stopped[1])


def grown(ledger: Ledger, job: Job, settings: Settings) -> TableListing:
    """What a job has planned of its table, and what newer versions have added."""
    assert job.spec.input.table is not None
    table = opened(job.spec.input.table, settings)
    planned = _planned(ledger, job)
    _, found = _added(ledger, job, table, {info.uri for info in planned})
    files = sorted([*planned, *_held(found.files, settings)], key=lambda info: info.uri)
    return TableListing(files, {}, stopped=_stopped(job, found))


def _added(
    ledger: Ledger, job: Job, table: InputTable, known: Collection[str]
) -> tuple[int, Added]:
    """Up to which version a job has everything, and what later ones have added. Once the job has that, too, the
    ledger keeps the later version.
    """
    with ledger.transaction() as connection:
        taken = input_versions.get(connection, job.id)
    assert taken is not None
    after, table_id = taken
    if table.identity() != table_id:
        why = BadInput(
            f"{private(job.spec.input.table)} is another table than the one that job {job.id} reads: somebody made it anew; a "
            "job of its own reads it"
        )
        return after, Added([], after, (table.newest(), why))
    found = table.added(after, _columns(job.spec), known.__contains__)
    if not found.files and found.until != after:
        with ledger.transaction() as connection:
            input_versions.put(connection, job.id, found.until)
    return after, found


def _columns(spec: JobSpec) -> list[str] | None:
    """What is read of the table: by the job, and to tell which rows are taken; None is all of it."""
    if spec.read_columns is None:
        return None
    return list(dict.fromkeys([*spec.read_columns, *spec.input.where_columns]))


def _stopped(job: Job, found: Added) -> tuple[FileInfo, BadInput] | None:
    if found.stopped is None:
        return None
    version, why = found.stopped
    return FileInfo(f"{job.spec.input.table}?version={version}", 0, str(version)), why


def _planned(ledger: Ledger, job: Job) -> list[FileInfo]:
    with ledger.transaction() as connection:
        planned = watches.all_planned_facts(connection, job.id)
    return [FileInfo(uri, *facts) for uri, facts in sorted(planned.items())]


def _held(infos: Sequence[FileInfo], settings: Settings) -> list[FileInfo]:
    """The same; BadInput for a data file outside the roots of this process."""
    uris = [info.uri for info in infos if not names_table(info.uri)]
    storage.check_roots(uris, settings.allowed_roots)
    return list(infos)
