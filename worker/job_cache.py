"""What a child keeps of each job that it works for: spec, templates, schemas."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nightshift.common import provenance, storage
from nightshift.common.errors import JobRefused, OutputRefused
from nightshift.common.formats import output_schema
from nightshift.common.formats.owner_marker import Owner
from nightshift.common.formats.table_types import NoTableType
from nightshift.common.ledger import schema
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import marked
from nightshift.common.spec import JobSpec
from nightshift.worker.engines.protocol import Engine
from nightshift.worker.outages import PatientLedger
from nightshift.worker.rows.prompts import Renderer
from nightshift.worker.rows.results import RowResults

ROOTS_SECONDS = 60.0
"""How often a child asks which roots the tenant of a job still has."""


@dataclass(slots=True)
class KnownJob:
    """One job, read from the ledger once; only a function's output schema may still be open. `remarked`
    says that this child has told the ledger what its engine has to say of the job. `resolved` is what the first
    load of the model fixed for the job; None until this child has asked. `roots` are the folders that
    the job was held to at `read_at`, in monotonic seconds; None where it is held to none. `own` is that of the
    ledger's `Job`.
    """

    id: int
    owner: Owner
    spec: JobSpec
    inputs: pa.Schema
    renderer: Renderer
    provenance: dict[str, str]
    output: pa.Schema | None
    remarked: bool = False
    resolved: Mapping[str, Any] | None = None
    roots: tuple[str, ...] | None = None
    own: tuple[str, ...] | None = None
    read_at: float = 0.0

    def fix(self, resolved: Mapping[str, Any]) -> None:
        """Keeps what is fixed for the job, and says it in the provenance of its parts."""
        self.resolved = resolved
        if any(resolved.values()):
            self.provenance["resolved"] = json.dumps(resolved)


class JobCache:
    """Jobs by number, shared by the threads of a child."""

    def __init__(self, ledger: PatientLedger, roots: Sequence[str] = ()) -> None:
        """Images that rows name are read below `roots` only, where there are some."""
        self._ledger = ledger
        self._roots = roots
        self._known: dict[int, KnownJob] = {}

    def get(self, job_id: int) -> KnownJob:
        """The job. No lock is held while the ledger is away, so other jobs go on."""
        known = self._known.get(job_id)
        if known is not None and known.roots is not None:
            self._look_again(known)
        if known is None:
            job = self._ledger.transact(jobs.get, job_id)
            ledger_id = self._ledger.transact(schema.ledger_id)
            assert job is not None, f"job {job_id} is not in the ledger"
            output = job.output_schema
            storage.keep_within(job.output_uri, self._roots or None, storage.SETTING)
            made_by = provenance.of_job(job_id, job.spec)
            known = KnownJob(
                id=job_id,
                owner=Owner(ledger_id, job.identity),
                spec=job.spec,
                inputs=output_schema.deserialize(job.input_schema),
                renderer=self._renderer(job),
                roots=job.roots,
                own=job.own,
                read_at=time.monotonic(),
                provenance=made_by,
                output=None if output is None else output_schema.deserialize(output),
            )
            if job.resolved is not None:
                known.fix(job.resolved)
            # Threads that read one job at the same time share what the first of them made.
            known = self._known.setdefault(job_id, known)
        return known

    def _renderer(self, job: Job) -> Renderer:
        try:
            return Renderer(job.spec.task, self._roots, job.roots)
        except ValueError as error:
            # A stored spec is not checked again, and its release may have had more.
            raise JobRefused(marked(error)) from error

    def _look_again(self, known: KnownJob) -> None:
        """A tenant may have lost a root meanwhile."""
        if time.monotonic() - known.read_at < ROOTS_SECONDS:
            return
        job = self._ledger.transact(jobs.get, known.id)
        if job is not None:
            known.roots = known.renderer.job_roots = job.roots
            known.own = job.own
            known.read_at = time.monotonic()

    def resolve(self, job: KnownJob, engine: Engine) -> None:
        """What the model fixes for the job, by the first load of it for the job. JobRefused for what the model
        cannot do.
        """
        if job.resolved is None:
            wanted = engine.resolve(job.spec.task)
            job.fix(self._ledger.transact(jobs.fix_resolved, job.id, wanted) if wanted else {})

    def output_schema(self, job: KnownJob, results: RowResults) -> tuple[pa.Schema, bool]:
        """The job's output schema, which the first answers fix where nothing else did; and whether
        the part is bare: without any answer yet it has only the columns that every part has.

        OutputRefused where the table of the job has no type for what was answered.
        """
        if job.output is not None:
            return job.output, False
        try:
            found = output_schema.inferred_schema(job.spec, job.inputs, results.answers())
        except NoTableType as error:
            raise OutputRefused(
                f"{marked(error)}: answer with values of another type and resume the job, or cancel the job and "
                "say the type in output.schema"
            ) from error
        if found is None:
            return output_schema.bare_schema(job.spec, job.inputs), True
        held = self._ledger.transact(jobs.fix_output_schema, job.id, output_schema.serialize(found))
        job.output = output_schema.deserialize(held)
        return job.output, False
