"""The one way in: files become a generation of a job, all of them or none.

A submit makes the first generation, and the job with it; an append makes a further one, with rows numbered
behind the last of the job. Both go the same way, over one Intake that is filled on it:

    resolve   what is asked for: the spec in its whole form; or the job, with all that it needs to grow
    list      the files, and whether a job has them; the output directory can be had
    plan      files to batches, from metadata; columns and ids are those that the spec or the job asks for
    arrange   batches whose rows share something, where the spec wants them
    store     one transaction; where a copy or a neighbour changed meanwhile, once more from the plan

The checks of `resolve` and `list` that need no ledger also run before any server starts (`before.check_before`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from nightshift.common import permits, storage
from nightshift.common.errors import BadInput, LeaseLost, StorageUnavailable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import (
    convert,
    hive,
    input_copies,
    output_schema,
    reading,
)
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.engines import loads
from nightshift.common.ledger.holds import Hold
from nightshift.common.ledger.jobs import (
    generations,
    job_submit,
    jobs,
    watches,
)
from nightshift.common.ledger.jobs.generations import End, Source
from nightshift.common.ledger.jobs.job_roots import UNBOUND, Admitted
from nightshift.common.ledger.jobs.job_submit import NewJob
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, RequestsTask, digest
from nightshift.common.spec.sections import OutputSpec
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo, Listing
from nightshift.producer import wings
from nightshift.producer.submit import (
    auto_args,
    checks,
    growing,
    openai_batch_file,
    owned_files,
    restore_copies,
    table_input,
    unique_ids,
    unique_ids_of_job,
)
from nightshift.producer.submit.arrange.arrange import ArrangedPlan, arranged_plan
from nightshift.producer.submit.existing import existing_job
from nightshift.producer.submit.output_owner import OwnedDirectory
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.submitted import Submitted, budget_counts
from nightshift.producer.submit.unique_ids_of_job import Known
from nightshift.producer.submit.withdraw import withdraw

log = structlog.get_logger(__name__)

MOST_PLANS = 3
"""How often the files of a growing job are planned because a copy of them was swept away meanwhile."""

Within = Callable[[Connection, int], object]
"""What else belongs into the transaction of a submit; called with the number of the new job."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a submit asks for beside its spec; see `submit.submit`."""

    new: bool = False
    adopt: bool = False
    tenant: str = ""
    admitted: Admitted = UNBOUND
    within: Within | None = None


PLAIN = Asked()
"""A submit that asks for nothing beside its spec."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a known job grows: by new files, which somebody named or a `look` found."""

    job: Job
    source: Source = "input"
    look: Hold | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append added. `reopened` says that the job was over; no `generation` where another append
    had the files already, or the watch of a look has ended. `empty` are files without a row, which are
    left out: they may get rows, and those of a planned file have their numbers. `rows_left_out` are rows of the
    files that do not match `input.where`.
    """

    files: int
    rows: int
    batches: int
    generation: int | None
    reopened: bool
    empty: tuple[str, ...] = ()
    rows_left_out: int = 0


NOTHING = Appended(0, 0, 0, None, False)


@dataclass(slots=True)
class Intake:
    """Files on their way in, and what is known of them so far; `answer` ends the way. A folder for `copies`
    takes the place of the output directory, which is then not read; `own_output` keeps that section of the spec.
    """

    spec: JobSpec
    settings: Settings = field(default_factory=Settings)
    given_ledger: Ledger | None = None
    asked: Asked = PLAIN
    copies: str | None = None
    own_output: OutputSpec | None = None
    growth: Growth | None = None
    files: Sequence[FileInfo] = ()
    table: table_input.InputTable | None = None
    listing: Listing = field(init=False)
    directory: OwnedDirectory = field(init=False)
    adopting: bool = False
    beside: tuple[str, ...] = ()
    due: datetime | None = None
    plan: Plan = field(init=False)
    ids: Known = None
    ordered: Plan | ArrangedPlan = field(init=False)
    notes: list[Within] = field(default_factory=list)
    answer: Submitted | Appended | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger. Only a survey has none."""
        assert self.given_ledger is not None
        return self.given_ledger

    @property
    def grown(self) -> Growth:
        """How the job grows; set for an append."""
        assert self.growth is not None
        return self.growth

    @property
    def output_uri(self) -> str:
        """Where the job writes, and copies of its input lie."""
        return self.spec.output.uri if self.growth is None else self.growth.job.output_uri

    @property
    def identity(self) -> str:
        """What makes a new job the same as another one: its spec and its files as they are now."""
        files = sorted((info.uri, info.size, info.fingerprint) for info in self.files)
        return digest([self.spec.identity, files])


def take_in(intake: Intake) -> None:
    """The whole way of an intake. Raises BadInput with one sentence for everything that can be refused
    without a worker, StorageUnavailable where copies of the files vanish again and again.
    """
    way = SUBMIT if intake.growth is None else APPEND
    for step in (*way.once, *(way.until_stored * MOST_PLANS)):
        if intake.answer is None:
            step(intake)
    if intake.answer is None:
        folder = input_copies.folder(intake.output_uri)
        raise StorageUnavailable(
            f"copies of {private(intake.files[0].uri)} in {private(folder)} vanish: append again"
        )


# ---------------------------------------------------------------- resolve


def resolve(intake: Intake) -> None:
    """The spec with absolute paths, below the allowed folders, with the arguments that auto stands for."""
    spec, copies = intake.spec, intake.copies
    if intake.given_ledger is not None:
        spec = auto_args.filled_in(intake.ledger, spec)
    spec = resolved(spec)
    storage.check_roots(spec.input.places, intake.settings.allowed_roots)
    if spec.input.table is not None:
        intake.table = table_input.opened(spec.input.table, intake.settings)
        spec = table_input.pinned(spec, intake.table, intake.given_ledger)
    if copies is None:
        storage.check_roots([spec.output.uri], intake.settings.allowed_roots)
    else:
        intake.own_output = spec.output
        spec = spec.model_copy(update={"output": spec.output.model_copy(update={"uri": copies})})
    permits.check_at_submit(spec, intake.settings)
    intake.spec = spec


def open_up(intake: Intake) -> None:
    """Refuse a job that cannot grow, and restore the input copies of a failed one, whose pending batches continue."""
    job = intake.grown.job
    growing.refuse(job)
    with intake.ledger.transaction() as connection:
        jobs.refuse_archived(connection, job.id)
    if job.state is JobState.FAILED:
        restore_copies.restore(intake.ledger, job, settings=intake.settings)


# ---------------------------------------------------------------- list


def list_files(intake: Intake) -> None:
    """The files of the input, and what they say of the spec."""
    if intake.table is not None:
        intake.listing = table_input.listed(
            intake.spec, intake.table, intake.settings, intake.given_ledger
        )
        intake.files = intake.listing.files
        return
    listing = storage.listing(intake.spec.input.uris)
    # A link below an allowed folder may lead out of it.
    storage.check_roots([info.uri for info in listing.files], intake.settings.allowed_roots)
    intake.listing, intake.files = listing, listing.files
    spec = hive.with_partitioning(intake.spec, listing.files)
    intake.spec = openai_batch_file.with_endpoint(spec, listing.files)


def find_known(intake: Intake) -> None:
    """A second submit finds its job, which is the answer."""
    found = existing_job(
        intake.ledger,
        intake.spec,
        intake.listing,
        intake.asked.new,
        intake.settings,
        intake.asked.tenant,
    )
    if found is not None and intake.table is not None:
        remark = table_input.newer(intake.ledger, intake.table, found.job_id)
        found = replace(found, newer_version=remark)
    intake.answer = found


def set_deadline(intake: Intake) -> None:
    """The moment of limits.finish_by by the clock of this machine; BadInput when it has passed."""
    if (wanted := intake.spec.limits.finish_by) is not None:
        intake.due = checks.moment_of(wanted)


def claim_output(intake: Intake) -> None:
    """BadInput for an output directory that a new job cannot have."""
    spec = intake.spec
    if intake.copies is not None:
        return
    storage.check_directory(spec.output.uri)
    if intake.given_ledger is not None:
        intake.directory = OwnedDirectory.of(intake.ledger, spec.output.uri, intake.identity)
        intake.adopting = intake.directory.check_free(adopt=intake.asked.adopt)
    checks.check_output(spec, intake.files, adopting=intake.adopting)
    if not intake.adopting:
        intake.beside = checks.files_beside(spec.output.uri)
        checks.refuse_foreign_rows(spec.output.uri, spec.output.format, intake.beside)


def check_paths(intake: Intake) -> None:
    """The paths of given files say what the paths of the job's first files said."""
    growing.check_paths(intake.ledger, intake.grown.job, intake.files)


# ---------------------------------------------------------------- plan


def plan_files(intake: Intake) -> None:
    """Files to batches, without a ledger and without the values of rows."""
    spec = intake.spec
    intake.plan = planner.plan(
        spec.input,
        spec.batch.rows,
        batch_bytes=spec.batch.bytes,
        columns=spec.read_columns,
        infos=intake.files,
        output_uri=intake.output_uri,
        may_be_empty=intake.growth is not None,
        known=None
        if intake.growth is None
        else output_schema.deserialize(intake.growth.job.input_schema),
        copy_table=table_input.copier(intake.settings),
    )


def check_batch_file(intake: Intake) -> None:
    """The ids of an OpenAI batch file differ; the first look at its lines, so before the plan. A spec that names
    rows to skip was checked when that list was made.
    """
    reading.current().begin()
    task = intake.spec.task
    if isinstance(task, RequestsTask) and task.skipped_rows is None:
        openai_batch_file.check_unique_ids(intake.files, intake.spec.input.limit)


def check_columns(intake: Intake) -> None:
    """The columns are those that the spec asks for."""
    spec, planned = intake.spec, intake.plan
    checks.check_schema(spec, planned.schema)
    schema = checks.with_late_texts(spec, planned)
    checks.check_table_types(spec, schema)
    intake.plan = replace(planned, schema=schema)


def check_ids(intake: Intake) -> None:
    """Ids differ where they must."""
    unique_ids.check(intake.spec, intake.plan)


def ask_wings(intake: Intake) -> None:
    """What wings refuse now that the columns are known, and what they note beside the job."""
    asked = wings.offered("check_job")
    if intake.spec.output.table is not None and not asked:
        raise BadInput("output.table needs the folder producer/tables, which is not here")
    spec = intake.spec
    if intake.own_output is not None:
        # Wings check the directory that the job will write to, not the temporary one for copies.
        spec = spec.model_copy(update={"output": intake.own_output})
    found = [check(spec, intake.plan.schema, intake.settings) for check in asked]
    intake.notes = [note for note in found if note is not None]
    if intake.table is not None:
        version = intake.spec.input.version
        assert version is not None
        intake.notes.append(table_input.Noted(version, intake.table.identity()))


def check_fit(intake: Intake) -> None:
    """The columns are those of the job, which its first files fixed, and ids differ where they must. New files
    without a row are left out: they may get rows.
    """
    growth, planned = intake.grown, intake.plan
    growing.check_columns(growth.job, planned)
    planned = planned.only({file.uri for file in planned.files if file.rows})
    intake.ids = unique_ids_of_job.check(intake.ledger, growth.job, planned)
    intake.plan = planned


# ---------------------------------------------------------------- arrange


def arrange(intake: Intake) -> None:
    """The batches in the order that the spec asks for. Each generation is arranged by itself."""
    spec = intake.spec
    with intake.ledger.transaction() as connection:
        cache_tokens = loads.cache_tokens(connection, spec.pool, spec.engine_key)
    intake.ordered = arranged_plan(
        spec, intake.plan, output_uri=intake.output_uri, cache_tokens=cache_tokens
    )


def arrange_generation(intake: Intake) -> None:
    """The same, with the columns of the job. A reaper that looks at an input sorts only where the spec asks
    for it: its memory and its disk are small.
    """
    growth = intake.grown
    if growth.look is not None and intake.spec.batch.arrange == "auto":
        intake.ordered = intake.plan
        return
    schema = output_schema.deserialize(growth.job.input_schema)
    intake.plan = replace(intake.plan, schema=schema)
    arrange(intake)


# ---------------------------------------------------------------- store


def store_job(intake: Intake) -> None:
    """The job of a submit with its first generation, and the marker of its output directory."""
    ledger, spec, asked, planned = intake.ledger, intake.spec, intake.asked, intake.plan
    ordered, listing = intake.ordered, intake.listing
    output_uri, directory = spec.output.uri, intake.directory
    new = _new_job(intake)
    made = directory.take(adopting=intake.adopting)
    try:
        with ledger.transaction() as connection:
            directory.hold(connection)
            # Whoever removes copies of a refused submit holds the same lock.
            job_submit.lock_output(connection, output_uri)
            if not convert.are_there(spec.input, output_uri, ordered.files):
                raise BadInput(
                    f"copies of the input in {private(output_uri)} are gone: submit again"
                )
            job_id = job_submit.insert(connection, new, ordered.files)
            batches = job_submit.insert_batches(
                connection, job_id, ordered.files, ordered.batches()
            )
            if (every := spec.input.watch_seconds) is not None:
                generations.begin(connection, job_id)
                watches.start(connection, job_id, every)
            loads.forgive(connection, spec.pool, spec.engine_key)
            facts = {"rows": planned.rows_total, "batches": batches}
            if planned.left_out:
                facts["rows_left_out"] = planned.left_out
            audit_log.record(connection, "submit", job_id, detail=facts)
            for note in (*intake.notes, *([] if asked.within is None else [asked.within])):
                note(connection, job_id)
            owned_files.remove_unnamed(output_uri)
            reached(Moment.SUBMITTING)
    except (BadInput, LeaseLost, KeyboardInterrupt) as error:
        # Another process submitted the same a moment ago: its job is the one to return.
        existing = None
        try:
            existing = existing_job(ledger, spec, listing, asked.new, intake.settings, asked.tenant)
        finally:
            if existing is None and made:
                directory.release()
        if existing is None or not isinstance(error, BadInput):
            raise
        intake.answer = existing
        return
    intake.answer = Submitted(
        job_id,
        True,
        planned.rows_total,
        batches,
        JobState.RUNNING,
        beside=intake.beside,
        watch_seconds=spec.input.watch_seconds,
        arranged=isinstance(ordered, ArrangedPlan),
        auto_args=auto_args.remark(spec),
        budget_counts=budget_counts(spec),
        rows_left_out=planned.left_out,
        linked_twice=listing.remark,
    )


def store_generation(intake: Intake) -> None:
    """New files behind the last row of the job. Nothing is stored, and the files are planned again, where a
    copy that the plan needs is gone, or holds files that another append has stored, and where the job has
    other files than those whose ids were read.
    """
    job, look = intake.grown.job, intake.grown.look
    filled = {file.uri for file in intake.plan.files}
    empty = tuple(info.uri for info in intake.files if info.uri not in filled)
    with intake.ledger.transaction() as connection:
        job_submit.lock(connection, job.identity)
        if look is not None and not watches.is_looking(connection, look):
            # Somebody ended the watch while the look was under way, or took the look over.
            intake.answer = replace(NOTHING, empty=empty)
            return
        ordered = intake.ordered
        left = growing.unknown(connection, job, ordered.files)
        if not left:
            intake.answer = replace(NOTHING, empty=empty)
            return
        if not unique_ids_of_job.still_known(connection, job, intake.ids):
            return
        if isinstance(ordered, Plan):
            ordered = ordered.only(left)
        elif len(left) < len(ordered.files):
            return
        if not convert.are_there(job.spec.input, job.output_uri, ordered.files):
            return
        generations.begin(connection, job.id)
        first = generations.end(connection, job.id)
        ordered = ordered.behind(first.row)
        job_submit.insert_files(connection, job.id, ordered.files, first.file)
        count = job_submit.insert_batches(
            connection,
            job.id,
            ordered.files,
            ordered.batches(),
            first_file=first.file,
            first_seq=first.seq,
        )
        stop = End(
            first.file + len(ordered.files), first.row + ordered.rows_of_files, first.seq + count
        )
        number = generations.add(connection, job.id, intake.grown.source, first, stop)
        watches.forget(connection, job.id, [file.uri for file in ordered.files])
        # The engine before the job, as where failed loads fail jobs.
        loads.lock(connection, job.id)
        reopened = growing.open_job(connection, job)
        if look is None:
            added = {
                "files": len(ordered.files),
                "rows": ordered.rows_total,
                "generation": number,
            }
            audit_log.record(connection, "append", job.id, detail=added)
        reached(Moment.APPENDING)
    if reopened:
        withdraw(intake.ledger, job)
    intake.answer = Appended(
        len(ordered.files), ordered.rows_total, count, number, reopened, empty, ordered.left_out
    )


@dataclass(frozen=True, slots=True)
class Way:
    """The steps of an intake: those that are taken once, and those that are taken until the plan is stored as
    it is. The first answer ends the way.
    """

    once: tuple[Callable[[Intake], None], ...]
    until_stored: tuple[Callable[[Intake], None], ...]


SURVEY = Way(
    (resolve, list_files, claim_output),
    (check_batch_file, plan_files, check_columns, check_ids, ask_wings),
)
"""What a submit of a new job would refuse, and its plan; nothing is stored."""

SUBMIT = Way(
    (resolve, list_files, find_known, set_deadline, claim_output),
    (check_batch_file, plan_files, check_columns, check_ids, ask_wings, arrange, store_job),
)
APPEND = Way((open_up, check_paths), (plan_files, check_fit, arrange_generation, store_generation))


def _new_job(intake: Intake) -> NewJob:
    spec, planned = intake.spec, intake.plan
    return NewJob(
        # The watch is a row of its own, which changes while the job runs.
        spec=spec.model_copy(update={"input": spec.input.model_copy(update={"watch": None})}),
        identity=intake.identity,
        spec_identity=spec.identity,
        output_uri=spec.output.uri,
        input_schema=output_schema.serialize(planned.schema),
        output_schema=checks.fixed_output_schema(spec, planned.schema),
        finish_by=intake.due,
        tenant=intake.asked.tenant,
        admitted=intake.asked.admitted,
    )
