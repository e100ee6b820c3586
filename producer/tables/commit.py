"""A job's parts become part of its table: in one commit, exactly once, whoever dies at which moment.

    intend   the ledger notes the version of the table, and which parts the commit adds and removes; until the end
             of the commit nobody changes these
    look     the table and then the ledger are asked whether the commit was made; snapshots expire, and with them
             what the table knows
    check    each file is there and is what the ledger says; the table has the columns, and no version that forbids
             the commit
    write    one commit to the version that was looked at; where another process was faster, once more from `look`
    note     the ledger notes the version that has the commit

A process that finds an open commit goes on from `look`, so it does not matter who began it. The table keeps the
mark of the last commit of a job, its number and a random one: Delta as the version of an application transaction,
Iceberg as a property. A commit that is refused is fenced first: a commit without files, so that a process that stood
still before its write comes too late.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog

from nightshift.common import storage
from nightshift.common.errors import NightshiftError, Permanent, Retryable, StorageUnavailable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger import Ledger, schema
from nightshift.common.ledger.jobs import job_end, jobs, table_commits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.jobs.table_commits import (
    MARK_BITS,
    Scope,
    TableCommit,
    TableFile,
)
from nightshift.common.public_text import marked, private
from nightshift.common.settings import Settings
from nightshift.common.spec.tables import TableSpec
from nightshift.common.states import JobState
from nightshift.common.text import first_few, one_line
from nightshift.producer.submit.append_command import within_job
from nightshift.producer.tables.data_files import PartsOfTable
from nightshift.producer.tables.delta import DeltaTables
from nightshift.producer.tables.iceberg import IcebergTables
from nightshift.producer.tables.table import (
    Change,
    CommitLost,
    CommitRefused,
    DataFile,
    Seen,
    Table,
    TableAway,
)

log = structlog.get_logger(__name__)

MOST_LOOKS = 30
"""How often a commit that others overtake is tried in one turn of a reaper; the next turn goes on."""

MOST_ALIKE = 5
"""How often a commit is lost to one and the same version of a table until the table is said to refuse it."""

PAUSE_SECONDS = 0.2
"""Longest pause between two tries."""


def table_of(spec: TableSpec, settings: Settings) -> Table:
    """The table that a spec names."""
    if spec.uri is not None:
        return DeltaTables(spec.uri)
    assert spec.catalog is not None
    assert spec.name is not None
    return IcebergTables(settings, spec.catalog, spec.name)


def app_of(ledger: Ledger, job: Job) -> str:
    """How the table names a job: jobs of two ledgers may have one number."""
    with ledger.transaction() as connection:
        return f"{schema.ledger_id(connection)}.{job.id}"


def resume(ledger: Ledger, job: Job, settings: Settings) -> None:
    """Goes on with a commit of a job that another process began, before anything else is done to its files."""
    if job.spec.output.table is not None:
        with within_job(job, settings):
            _Commits(ledger, job, settings).finish_begun()


def commit_job(ledger: Ledger, job: Job, settings: Settings) -> None:
    """Commits what the table of a job lacks, before the job is closed; a job that failed or was cancelled commits
    nothing. Raises CommitRefused where the job cannot end so, Retryable errors for outages.
    """
    if job.spec.output.table is None:
        return
    with ledger.transaction() as connection:
        ends_well = job_end.open_work(connection, job.id).end is JobState.COMPLETED
    if ends_well:
        with within_job(job, settings):
            _Commits(ledger, job, settings).commit_due()


def commit_finished(ledger: Ledger, settings: Settings) -> None:
    """Commits the generations of open jobs that are finished. A job whose table cannot be had stops no other; one
    without any answer waits for the columns of its answers.
    """
    with ledger.transaction() as connection:
        found = table_commits.open_jobs(connection)
    for job_id in found:
        with ledger.transaction() as connection:
            job = jobs.get(connection, job_id)
        if job is None or job.spec.output.table is None or job.output_schema is None:
            continue
        try:
            with within_job(job, settings):
                work = _Commits(ledger, job, settings)
                work.finish_begun()
                work.commit_due(finished=True)
        except Exception as error:  # no job may keep the others from their tables
            log.warning("table_not_committed", job_id=job_id, error=str(error))


@contextmanager
def _waiting() -> Iterator[None]:
    """A catalog that is out of reach, or that this machine does not know, is an outage for a job whose rows are done."""
    try:
        yield
    except TableAway as error:
        raise StorageUnavailable(marked(error)) from error


def misplaced(mark: int, commit: TableCommit, done: TableCommit | None) -> str | None:
    """Why a table whose last commit of the job has this `mark` is not the one that the ledger knows, where `done` is the
    last commit that the ledger says the table has; None where it is, and lacks the commit.
    """
    number, before = mark >> MARK_BITS, 0 if done is None else done.number
    if number < before:
        return (
            f"has not the commit {before} of job {commit.job_id}, which the ledger says it has: somebody dropped the "
            "table, or made another one of its name; submit the rows as a job of their own"
        )
    is_fence = before < number < commit.number and not mark % (1 << MARK_BITS)
    if not is_fence and mark != (0 if done is None else done.mark):
        return (
            f"has a commit {number} of job {commit.job_id} that this ledger does not know, as after a ledger was "
            "restored from a dump: submit the rows as a job of their own"
        )
    return None


def check_places(table: Table, seen: Seen, job: Job, settings: Settings) -> None:
    """BadInput for a table that lies outside the roots of this process or of the job."""
    places = table.places(seen)
    storage.check_roots(places, settings.allowed_roots)
    storage.check_held(places, job.roots, storage.OF_JOB)


class _Commits:
    """The commits of one job."""

    def __init__(self, ledger: Ledger, job: Job, settings: Settings) -> None:
        assert job.spec.output.table is not None
        self._ledger, self._job, self._settings = ledger, job, settings
        self._spec = job.spec.output.table
        self._table = table_of(self._spec, settings)
        self._app = app_of(ledger, job)
        self._parts = PartsOfTable.of(job)

    def finish_begun(self) -> None:
        """Goes on with a commit that another process began."""
        with self._ledger.transaction() as connection:
            last = table_commits.last(connection, self._job.id)
        if last is not None and last.state == "open":
            self._carry_out(last)

    def commit_due(self, *, finished: bool = False) -> None:
        """Commits the scopes whose parts the table lacks, one after the other; of generations those that are
        `finished`, where only these are wanted.
        """
        with self._ledger.transaction() as connection:
            due = table_commits.due(connection, self._job.id, finished=finished)
        if due and self._job.output_schema is None:
            raise CommitRefused(
                f"no row of job {self._job.id} has an answer, which would say the columns of the table: say "
                "output.schema, or retry the rows"
            )
        for scope in due:
            self._commit(scope)

    def _commit(self, scope: Scope) -> None:
        """Until the table has the scope or may not have it: meanwhile others may commit another scope, or refuse."""
        for _ in range(MOST_LOOKS):
            begun = self._intend(scope)
            if begun is None or (self._carry_out(begun) and begun.scope == scope):
                return
        raise StorageUnavailable(f"others change the commits of job {self._job.id} all the time")

    def _seen(self) -> Seen:
        """The table as it is now."""
        with _waiting():
            return self._table.look()

    def _intend(self, scope: Scope) -> TableCommit | None:
        seen = self._seen()
        with self._ledger.transaction() as connection:
            last = table_commits.last(connection, self._job.id)
            # A process that was frozen while others refused its commit may have made the commit after all.
            if (
                last is not None
                and last.state == "refused"
                and self._table.mark(seen, self._app) == last.mark
            ):
                table_commits.end(connection, last, version=seen.version)
            begun = table_commits.begin(connection, self._job.id, scope, seen.version)
        reached(Moment.TABLE_INTENDED)
        return begun

    def _carry_out(self, commit: TableCommit) -> bool:
        """Makes the commit; False where another process has ended it, in whichever way."""
        with self._ledger.transaction() as connection:
            add, remove = table_commits.files(connection, commit)
        try:
            version = self._made(commit, add, remove)
        except Retryable:
            raise
        except Exception as error:
            version = self._refused(commit, NightshiftError(one_line(marked(error))))
            if version is None:
                raise
        if version is None:
            return False
        with self._ledger.transaction() as connection:
            table_commits.end(connection, commit, version=version)
        reached(Moment.TABLE_NOTED)
        log.info(
            "table_committed",
            job_id=self._job.id,
            table=self._spec.title,
            version=version,
            parts=len(add),
            replaced=len(remove),
        )
        return True

    def _refused(self, commit: TableCommit, reason: NightshiftError) -> str | None:
        """Notes that a commit is refused, and sees to it that nobody makes the commit any more: a process that was
        frozen before its write finds another version of the table. Returns the version that has the commit, where
        somebody was faster.
        """
        for _ in range(MOST_LOOKS):
            seen = self._seen()
            mark = self._table.mark(seen, self._app)
            if mark == commit.mark:
                return seen.version
            if mark == commit.fence or seen.version is None:
                break
            try:
                with _waiting():
                    self._table.fence(seen, self._app, commit.fence)
            except CommitLost:
                continue
            except Permanent:  # a table that takes no commit takes none of a frozen process either
                break
        with self._ledger.transaction() as connection:
            table_commits.end(connection, commit, reason=reason)
        return None

    def _made(
        self, commit: TableCommit, add: list[TableFile], remove: list[TableFile]
    ) -> str | None:
        """The version of the table that has the commit; None where the ledger knows what became of it."""
        files: list[DataFile] | None = None
        alike, before = 0, ""
        for _ in range(MOST_LOOKS):
            seen = self._seen()
            # The table before the ledger: what others have noted since the look is seen below, and what they commit
            # after the look makes this commit fail.
            mark = self._table.mark(seen, self._app)
            if mark == commit.mark:
                return seen.version
            with self._ledger.transaction() as connection:
                if table_commits.state_of(connection, commit) != "open":
                    return None
                done = table_commits.last_done(connection, self._job.id)
            is_fenced = mark == commit.fence
            if not is_fenced and (why := misplaced(mark, commit, done)) is not None:
                raise CommitRefused(f"the table {private(self._spec.title)} {why}")
            if files is None:
                files = self._parts.checked(add)
            change = self._change(commit, seen, files, add, remove)
            self._check(seen, change)
            if is_fenced:
                # Another reaper has fenced this commit and not recorded its reason yet, or crashed before it could. The
                # checks above raise the same reason if it still applies.
                raise CommitRefused(
                    f"another reaper refused the commit of job {self._job.id} to the table {private(self._spec.title)} without "
                    f"recording a reason, and the checks pass now: `nightshift retry {self._job.id} --dead` commits again"
                )
            reached(Moment.TABLE_CHECKED)
            try:
                with _waiting():
                    version = self._table.commit(seen, change)
            except CommitLost as lost:
                alike = alike + 1 if seen.version == before else 1
                before = seen.version or ""
                if alike == MOST_ALIKE:  # nobody else commits: the table does not take the commit
                    raise CommitRefused(one_line(marked(lost))) from lost
                time.sleep(random.uniform(0, PAUSE_SECONDS))
                continue
            reached(Moment.TABLE_WRITTEN)
            return version
        raise StorageUnavailable(
            f"others commit to the table {private(self._spec.title)} all the time, and were faster {MOST_LOOKS} times"
        )

    def _change(
        self,
        commit: TableCommit,
        seen: Seen,
        files: list[DataFile],
        add: list[TableFile],
        remove: list[TableFile],
    ) -> Change:
        schema = self._parts.schema
        if self._spec.mode == "merge" and seen.version is not None:
            rows = partial(self._parts.batches, add, remove)
            key = self._job.spec.input.id
            return Change(self._app, commit.mark, schema, merge=rows, key=key)
        merged = self._spec.mode == "merge"
        return Change(
            self._app,
            commit.mark,
            schema,
            add=files,
            remove=[] if merged else self._parts.places(remove),
            overwrite=self._spec.mode == "overwrite" and commit.number == self._first_number(),
        )

    def _first_number(self) -> int:
        """The number of the first commit that the table got or gets: those before were refused."""
        with self._ledger.transaction() as connection:
            return table_commits.first_made(connection, self._job.id)

    def _check(self, seen: Seen, change: Change) -> None:
        """CommitRefused where the table that was seen forbids the commit, BadInput where it lies outside the roots."""
        check_places(self._table, seen, self._job, self._settings)
        replaces, merges = change.overwrite or bool(change.remove), change.merge is not None
        why = self._table.misfit(seen, change.schema, replaces=replaces, merges=merges)
        if why is not None:
            raise CommitRefused(
                f"the parts do not fit the table {private(self._spec.title)}: {why}"
            )
        if change.overwrite:
            self._refuse_overtaken(seen)
        if change.remove:
            names = self._table.names(seen)
            gone = [uri for uri in change.remove if uri not in names]
            if gone:
                raise CommitRefused(
                    f"{first_few(gone, 2)} {'is' if len(gone) == 1 else 'are'} no file of the table "
                    f"{private(self._spec.title)} any more, since somebody compacted, changed or deleted rows there: "
                    "the new answers cannot take the place of the old ones"
                )

    def _refuse_overtaken(self, seen: Seen) -> None:
        with self._ledger.transaction() as connection:
            base = table_commits.noted_base(connection, self._job.id)
        if seen.version != base:
            raise CommitRefused(
                f"the table {private(self._spec.title)} had the version {base or 'none'} when job {self._job.id} was "
                f"submitted and has {seen.version} by now, which mode overwrite would lose: `nightshift retry "
                f"{self._job.id} --dead` overwrites what is there now"
            )
