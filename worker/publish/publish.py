"""Publishes finished batches: writes their parts, commits them, moves them to their place.

Read from `publish` down: each step marks the publications that go no further with their error.
"""

import time
from collections.abc import Sequence

from nightshift.common import storage
from nightshift.common.errors import LeaseLost, StorageUnavailable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import part_rows
from nightshift.common.formats.part_names import final, part_name, staged
from nightshift.common.ledger.batches.records import Part
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.jobs import jobs
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import Move
from nightshift.worker.outages import suppressed, tell_wait
from nightshift.worker.publish.commit import BatchCommits
from nightshift.worker.publish.publication import Publication
from nightshift.worker.telemetry.recorder import BatchCommitted
from nightshift.worker.telemetry.stage import Stage

WRITE_RETRY_SECONDS = 60.0
"""How long a part is tried again on a failing store before its batch is given back."""


class Publisher:
    """Writes and commits the batches of one child. For many threads at once."""

    def __init__(self, child: ChildContext) -> None:
        self._child = child
        self.commits = BatchCommits(child)
        self._for_store = child.ledger.retrying(StorageUnavailable, WRITE_RETRY_SECONDS)

    def publish(self, group: Sequence[Publication]) -> None:
        """Writes, commits and moves the part of each batch; all are of one job."""
        with self._child.recorder.span(Stage.WRITE):
            written = self._written(group)
        self._commit_and_move(written)
        for each in group:
            if each.part is None and isinstance(each.error, StorageUnavailable):
                self._publish_late(each)

    def _publish_late(self, each: Publication) -> None:
        """Tries a part that the store refused again, after the others of its group are committed."""

        def write() -> None:
            each.error = None
            self._written([each])
            if each.error is not None:
                tell_wait(self._child.recorder, each.lease.job_id, each.error)
                raise each.error

        try:
            with self._child.recorder.span(Stage.WRITE):
                self._for_store(write)
        except Exception as error:
            each.error = error
        else:
            self._commit_and_move([each])

    def _written(self, group: Sequence[Publication]) -> list[Publication]:
        """The batches whose part is durable now; the others have an error."""
        written = []
        try:
            with group[0].batch.progress.stage() as moved:
                syncs = storage.Syncs()
                for each in group:
                    try:
                        each.part = _stored(each, syncs)
                        written.append(each)
                    except Exception as error:
                        each.error = error
                    moved()
                syncs.finish()
        except StorageUnavailable as error:
            for each in written:
                each.part, each.error = None, error
            return []
        return written

    def _commit_and_move(self, group: Sequence[Publication]) -> None:
        if not group:
            return
        for _ in group:
            reached(Moment.WRITTEN)
        with self._child.recorder.span(Stage.COMMIT):
            self.commits.commit(group)
            done = [each for each in group if each.committed]
        for each in done:
            each.batch.move(Move.COMMIT)
            self._child.recorder.went_on(outages.Kind.STORAGE, each.lease.job_id)
            self._tell_commit(each)
        for each in group:
            if isinstance(each.error, LeaseLost):
                self._discard(each)
        if not done:
            return
        for _ in done:
            reached(Moment.COMMITTED)
        with self._child.recorder.span(Stage.SETTLE):
            self._finish(done)

    def _tell_commit(self, each: Publication) -> None:
        lease, part = each.commit()
        rows = lease.todo if each.kept_rows is None else each.kept_rows
        ran = None if lease.redo is None else set(rows)
        errors = [error for error in part.errors if ran is None or error.row_index in ran]
        self._child.recorder.batch_committed(
            BatchCommitted(
                lease.batch_id,
                lease.attempt,
                part_rows=len(each.table.table),
                part_errors=len(part.errors),
                rows=len(rows),
                rows_failed=len(errors),
                prompt_tokens=part.tokens_spent.prompt,
                output_tokens=part.tokens_spent.output,
                cached_tokens=each.table.cached_tokens,
                rows_shared=each.table.rows_shared,
                reasoning_tokens=each.table.reasoning_tokens,
                seconds=time.monotonic() - each.batch.claimed_at,
                whole=each.kept_rows is None,
            )
        )

    def _discard(self, each: Publication) -> None:
        """Removes the part of an attempt whose lease was lost: nobody else writes under its name,
        and nobody sweeps any more once the job is closed.
        """
        _, part = each.commit()
        stage = each.batch.progress.stage()
        with stage, suppressed(Exception, self._child.recorder, "discard_failed", part=part.name):
            storage.delete(staged(each.spec.output.uri, part.name))

    def _finish(self, group: Sequence[Publication]) -> None:
        """What follows a commit. Should this child die before, the reaper's finish does the same."""
        stage = group[0].batch.progress.stage()
        failure = suppressed(Exception, self._child.recorder, "settle_failed")
        with failure, stage as moved:
            syncs = storage.Syncs()
            for each in group:
                self._move(each, syncs)
                moved()
            syncs.finish()
        if any(each.table.errors for each in group):
            self._judge(group[0].lease.job_id)

    def _move(self, each: Publication, syncs: storage.Syncs) -> None:
        lease, part = each.commit()
        uri = each.spec.output.uri
        with suppressed(Exception, self._child.recorder, "settle_failed", batch_id=lease.batch_id):
            storage.move(staged(uri, part.name), final(uri, part.name), part.bytes, syncs)
            reached(Moment.MOVED)
            # A table may have the old part: a reaper removes the part in time.
            if lease.kept_part is not None and each.spec.output.table is None:
                self._delete_replaced(lease.job_id, final(uri, lease.kept_part))

    def _delete_replaced(self, job_id: int, uri: str) -> None:
        """Delete the part that a new one replaced, unless the job was deleted meanwhile: then the directory may belong to
        a job of another ledger, with a part of the same name.
        """
        with self._child.ledger.transaction() as connection:
            is_known = jobs.get(connection, job_id) is not None
        if is_known:
            storage.delete(uri)

    def _judge(self, job_id: int) -> None:
        with suppressed(Exception, self._child.recorder, "judge_failed", job_id=job_id):
            with self._child.ledger.transaction() as connection:
                paused = jobs.judge_failures(connection, job_id)
            if paused:
                self._child.recorder.problem("job_paused", job_id=job_id, why="of its failed rows")


def _stored(each: Publication, syncs: storage.Syncs) -> Part:
    lease, output, table = each.lease, each.spec.output, each.table
    if each.encoded is None:
        each.encoded = part_rows.encode_part(table.table, output.format, each.provenance)
    name = part_name(lease.seq, lease.batch_id, lease.attempt, output.format, bare=each.bare)
    facts = part_rows.write_encoded(staged(output.uri, name), each.encoded, syncs)
    tokens = table.prompt_tokens, table.output_tokens
    return Part(
        name,
        facts.bytes,
        facts.checksum,
        *tokens,
        table.errors,
        table.spent,
        answered=table.answered,
    )
