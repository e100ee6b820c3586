"""What is published of a batch that left the engine: the rows that are finished, as the table of a part."""

from concurrent.futures import Future

from nightshift.common.descriptor import RowRanges
from nightshift.common.errors import (
    EngineGone,
    EngineRefused,
    EngineUnavailable,
    Permanent,
    StorageUnavailable,
)
from nightshift.common.exit_codes import ExitCode
from nightshift.common.formats import part_names
from nightshift.common.formats.part_rows import PartStore
from nightshift.common.ledger.batches.records import Lease
from nightshift.worker.batch.inference import LoadedBatch
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import Move, State
from nightshift.worker.job_cache import JobCache
from nightshift.worker.outcomes import BatchOutcomes
from nightshift.worker.publish.publication import Publication
from nightshift.worker.rows.results import part_table, with_kept_rows
from nightshift.worker.telemetry.stage import Stage

KEEPS_ANSWERS = (EngineUnavailable, StorageUnavailable)
"""An engine that met one of these outages has given answers before, and they are kept."""


class Finished:
    """Makes publications of the batches of one child. For many threads at once."""

    def __init__(self, child: ChildContext, jobs: JobCache, outcomes: BatchOutcomes) -> None:
        self._child, self._jobs, self._outcomes = child, jobs, outcomes

    def publication(self, loaded: LoadedBatch, future: "Future[None]") -> Publication | None:
        """What there is to publish; None when no row is finished, or none is wanted."""
        batch = loaded.batch
        loaded.close()
        if (work := batch.work) is not None:  # who ends the batch meanwhile takes its work away
            self._outcomes.remark(loaded.job, work.remark)
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, KEEPS_ANSWERS):
            batch.stop()  # else rows of it could still go to another child
            raise error
        batch.move(Move.PUBLISH)
        lease = batch.lease
        if isinstance(error, EngineRefused):
            self._outcomes.pause_job(lease, error)
        if isinstance(error, EngineGone):
            self._child.leave(ExitCode.ENGINE_GONE, str(error))
        finished = RowRanges.from_indices(loaded.results.finished())
        if len(finished.minus(lease.todo)):
            raise RuntimeError("the engine answered rows that the batch does not hold")
        if len(finished) == len(lease.todo):
            return self._table(lease, loaded)
        if batch.state is State.OVER or not len(finished):
            if error is not None:
                raise error
            return None
        if lease.redo is not None:
            return self._table(lease.narrowed(finished), loaded)
        publication = self._table(lease, loaded, kept_rows=finished)
        publication.unsent = batch.withdraw_unsent()
        return publication

    def _table(
        self, lease: Lease, loaded: LoadedBatch, kept_rows: RowRanges | None = None
    ) -> Publication:
        job = loaded.job
        schema, bare = self._jobs.output_schema(job, loaded.results)
        made_by = {
            **job.provenance,
            "batch": str(lease.batch_id),
            "attempt": str(lease.attempt),
            "worker": lease.owner,
            "engine": self._child.engine.name,
            "engine_version": self._child.engine.version,
            "revision": self._child.engine.revision or "",
        }
        with loaded.batch.progress.stage() as moved:
            with self._child.recorder.span(Stage.TABLE):
                table = part_table(job.spec, schema, loaded.results)
            if lease.redo is not None and lease.kept_part is not None:
                moved()
                uri = part_names.located(job.spec.output.uri, lease.kept_part)
                if uri is None:
                    raise Permanent(f"the part {lease.kept_part} with the kept answers is gone")
                parts = PartStore(job.spec, job.inputs, schema)
                whole, made_by = parts.merge(table.table, made_by, lease.todo, lease.kept_part, uri)
                table = with_kept_rows(table, whole, job.spec.input.id)
        return Publication(loaded.batch, lease, job.spec, table, made_by, kept_rows, bare)
