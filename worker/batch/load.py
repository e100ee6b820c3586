"""A leased batch becomes requests: its rows are read and rendered, within the roots of its job."""

import dataclasses

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import input_rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import for_python
from nightshift.common.ledger.fleet.outages import Kind
from nightshift.common.public_text import shown_path
from nightshift.common.spec import FunctionTask, JobSpec
from nightshift.common.spec.table_uris import table_rows
from nightshift.worker.batch.inference import LoadedBatch
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.job_cache import JobCache
from nightshift.worker.outputs import Outputs
from nightshift.worker.rows.results import RowResults
from nightshift.worker.telemetry.stage import Stage


def _input_places(spec: JobSpec, source: SourceFile) -> list[str]:
    """Return the addresses that the roots must allow: the file's or, if its uri names a version of a table, the
    table's. The rows of such a version are read from a copy in the output directory.
    """
    return [source.uri] if table_rows(source.uri) is None else spec.input.places


class Loader:
    """Loads the batches of one child. For many threads at once."""

    def __init__(self, child: ChildContext, jobs: JobCache, outputs: Outputs) -> None:
        self._child, self._jobs, self._outputs = child, jobs, outputs
        self._cache = ReadCache(child.settings.read_cache_bytes)

    def load(self, batch: HeldBatch) -> LoadedBatch:
        """The batch's rows as requests; a row that cannot be read or rendered has failed already."""
        lease = batch.lease
        reached(Moment.CLAIMED)
        job = self._jobs.get(lease.job_id)
        self._jobs.resolve(job, self._child.engine)
        spec = job.spec
        self._child.window.weigh(batch, spec.sequences)
        roots = self._child.settings.allowed_roots
        with (
            batch.progress.stage() as moved,
            storage.within(roots or None, storage.SETTING),
            storage.within(job.roots, storage.OF_JOB),
        ):
            # The job may have been submitted where other roots are allowed.
            named = [*_input_places(spec, lease.descriptor.source), spec.output.uri]
            storage.check_roots(named, roots)
            storage.check_held(named, job.roots, storage.OF_JOB)
            if self._outputs.prove(job.id, spec.output.uri, job.owner):
                self._child.recorder.went_on(Kind.STORAGE, job.id)
            moved()
            with self._child.recorder.span(Stage.READ):
                source = lease.descriptor.source
                title = shown_path(source.uri, job.own)
                rows = input_rows.read_rows(
                    spec,
                    dataclasses.replace(
                        lease.descriptor,
                        source=dataclasses.replace(source, title=title),
                        rows=lease.todo,
                    ),
                    spec.read_columns,
                    self._cache,
                    job.inputs,
                    as_arranged=True,
                )
            reached(Moment.READING)
            with self._child.recorder.span(Stage.RENDER):
                requests, refused = job.renderer.render(rows.table, rows.row_index, moved)
        passed = [part.select(spec.passed_columns) for part in (rows.table, rows.bad_table)]
        row_index = [*rows.row_index, *rows.bad]
        results = RowResults(
            row_index, pa.concat_tables(passed), {**refused}, dict(rows.bad), job.own
        )
        self._child.window.spending.run(lease.job_id, len(lease.todo) - len(requests))
        batch.rows_failed = len(lease.todo) - len(requests)
        self._child.window.row_finished(batch, batch.rows_failed)
        given = for_python(rows.table) if isinstance(spec.task, FunctionTask) else None
        return LoadedBatch(batch, job, results, requests, given)
