"""Finalizing: the results of a batch whose job is over become files, and the batch ends."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import structlog
from numpy.typing import NDArray

from nightshift.common import storage
from nightshift.common.errors import LeaseLost, LedgerUnavailable, Permanent
from nightshift.common.failpoints import Moment, reached
from nightshift.common.formats import streams
from nightshift.common.formats.jsonl.lines import is_blank, parse_line
from nightshift.common.formats.jsonl.openai_batch import id_of
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.ledger.holds import Hold
from nightshift.common.ledger.jobs import jobs, spending
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import sent_rows
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.common.text import counted
from nightshift.producer.reaper.renewed_hold import Renewed, renewed
from nightshift.producer.results import openai_batch_results, part_files
from nightshift.producer.results.collect import rows_for
from nightshift.producer.serve import store_layout
from nightshift.producer.serve.api_batches.batch_file import Problem
from nightshift.producer.serve.ledger import (
    api_batch_steps,
    api_batches,
    files,
    ids,
)
from nightshift.producer.serve.ledger.api_batches import ApiBatch, ApiBatchStatus

log = structlog.get_logger(__name__)

ROWS_A_CHECK = 10_000
"""Rows between two checks that the reaper still holds the batch."""

TRIED_FOR = timedelta(hours=1)
"""How long a batch is tried whose results cannot be read: an operator may bring lost files back."""

ENDED_BEFORE = {
    ApiBatchStatus.EXPIRED: ("batch_expired", "the batch's time was over"),
    ApiBatchStatus.CANCELLED: ("batch_cancelled", "the batch was cancelled"),
    ApiBatchStatus.FAILED: ("batch_failed", "the batch failed"),
}
"""Code of a request without an outcome, and what happened, by how the batch ended."""

NEVER_RAN = "{} before this request ran"
WAS_RUNNING = (
    "{} while this request was running: it may have been sent, and its answer was not kept"
)


@dataclass(slots=True)
class ResultFile:
    """A file of results on its way: its id, its place, its lines, bytes and tokens of thoughts so far."""

    id: str
    uri: str
    lines: int = 0
    size: int = 0
    reasoning_tokens: int = 0

    def write(self, sink: BinaryIO, line: bytes) -> None:
        """Adds a line."""
        sink.write(line)
        self.lines += 1
        self.size += len(line)


def ended_as(
    ends_as: ApiBatchStatus | None, job: JobState | None, *, every_row_over: bool
) -> ApiBatchStatus:
    """How a batch ends: as it was told to, else as its job did. A job that failed with an outcome for
    every row has completed the batch: which rows failed stands in its files.
    """
    if ends_as is not None:
        return ends_as
    if job is JobState.CANCELLED:
        return ApiBatchStatus.CANCELLED
    if job is JobState.COMPLETED or (job is JobState.FAILED and every_row_over):
        return ApiBatchStatus.COMPLETED
    return ApiBatchStatus.FAILED


def finalize_once(ledger: Ledger, settings: Settings, who: str) -> bool:
    """Finalizes a batch whose job is over; False where there is none.

    Raises Retryable on outages, and for TRIED_FOR also Permanent where files of the job are not what
    the ledger says: the batch is taken again when the time of this reaper is over. After that the batch
    has failed; a retry of the batch writes the files once somebody has brought them back.
    """
    with ledger.transaction() as connection:
        taken = api_batch_steps.take_ended(connection, who)
        if taken is None:
            return False
        batch, hold = taken
        job = jobs.get(connection, batch.job_id)
        told = api_batch_steps.ends_as(connection, batch.id)
        progress = None if job is None else jobs.progress(connection, job.id)
        cost = None if job is None else spending.cost(connection, job.id)
    if job is None or progress is None or cost is None:
        gone = [Problem("job_deleted", "the job of the batch was deleted").as_json]
        with suppress(LeaseLost):
            _end(ledger, batch, hold, told or ApiBatchStatus.FAILED, (), gone, {}, None)
        return True
    facts = {**progress, **cost}
    over = progress["rows_done"] + progress["rows_failed"]
    status = ended_as(told, job.state, every_row_over=over == progress["rows_total"])
    errors = None
    if status is ApiBatchStatus.FAILED:
        errors = [Problem("job_failed", job.reason or "the job of the batch failed").as_json]
    try:
        with _result_files(ledger, settings, batch) as results:
            write_results(
                ledger,
                hold,
                job,
                status,
                progress["rows_total"],
                results,
            )
            _end(ledger, batch, hold, status, results, errors, facts, job)
    except LeaseLost as lost:
        log.info("batch_left", batch=batch.id, why=str(lost))
    except Permanent as error:
        if job.closed_at is None or datetime.now(UTC) - job.closed_at < TRIED_FOR:
            raise
        log.exception("batch_results_lost", batch=batch.id)
        lost_results = [
            Problem("results_lost", f"the results cannot be read: {error.public_message()}").as_json
        ]
        ended = told or ApiBatchStatus.FAILED
        with suppress(LeaseLost):
            _end(ledger, batch, hold, ended, (), lost_results, facts, job)
    else:
        log.info("batch_ended", batch=batch.id, status=str(status))
    return True


def write_results(
    ledger: Ledger,
    hold: Hold,
    job: Job,
    status: ApiBatchStatus,
    rows_total: int,
    results: tuple[ResultFile, ResultFile],
) -> None:
    """Writes every line of the batch into a file of answers and one of errors."""
    answers, errors = results
    answered = np.zeros(rows_total, np.bool_)
    sent = np.zeros(rows_total, np.bool_)
    with ledger.transaction() as connection:
        for piece in sent_rows.sent(connection, job.id):
            for start, stop in piece.ranges:
                sent[start:stop] = True

    def fill(to_answers: BinaryIO, to_errors: BinaryIO) -> None:
        _, rows = rows_for(ledger, job, [], partial=True, force=True)
        noted = _noted(part_files.read_ahead(rows), answered, answers, work)
        for line, is_answer in openai_batch_results.lines(job, noted):
            if is_answer:
                answers.write(to_answers, line)
            else:
                errors.write(to_errors, line)
        if status in ENDED_BEFORE and not answered.all():
            code, ended = ENDED_BEFORE[status]
            for row_index, custom_id in _unanswered(job, answered, work):
                message = (WAS_RUNNING if sent[row_index] else NEVER_RAN).format(ended)
                line = openai_batch_results.error_line(job, row_index, custom_id, code, message)
                errors.write(to_errors, line)

    def touch(connection: Connection) -> None:
        """The files which are written are wanted."""
        for file in results:
            files.touch(connection, file.id)

    with renewed(ledger, hold, touch) as work:
        storage.write_streamed(
            answers.uri,
            lambda to_answers: storage.write_streamed(
                errors.uri, lambda to_errors: fill(to_answers, to_errors)
            ),
        )
    lines = answers.lines + errors.lines
    if status is ApiBatchStatus.COMPLETED and lines != rows_total:
        raise Permanent(f"the parts of {job.label} have {lines:,} of {counted(rows_total, 'row')}")


def _end(
    ledger: Ledger,
    batch: ApiBatch,
    hold: Hold,
    status: ApiBatchStatus,
    results: tuple[ResultFile, ...],
    errors: list[dict[str, Any]] | None,
    progress: dict[str, Any],
    job: Job | None,
) -> None:
    """The files are seen and the batch is over, in one transaction; LeaseLost where another reaper
    has the batch, and where the `job` that the files are of has run again since.
    """
    kinds = dict(zip(("output", "error"), results, strict=False))
    with ledger.transaction() as connection:
        _refuse_reopened(connection, batch, job)
        for kind, file in kinds.items():
            if not file.lines:
                continue  # nobody sees it, and it is swept
            seen = files.ready(
                connection,
                file.id,
                purpose="batch_output",
                filename=f"{batch.id}_{kind}.jsonl",
                size=file.size,
                expires_after=batch.output_expires_seconds,
            )
            if seen is None:
                raise LeaseLost(f"a sweep has taken the {kind} file of {batch.id}")
        shown = {kind: file.id if file.lines else None for kind, file in kinds.items()}
        written, failed = None, 0
        if results:
            written = api_batch_steps.WrittenFiles(
                shown["output"], shown["error"], kinds["output"].lines
            )
            failed = kinds["error"].lines
        ended = api_batch_steps.end(
            connection,
            hold,
            status,
            written=written,
            failed=failed
            if status is ApiBatchStatus.COMPLETED
            else int(progress.get("rows_failed", 0)),
            usage=_usage(progress, sum(file.reasoning_tokens for file in results)),
            errors=errors,
        )
        if not ended:
            raise LeaseLost(f"another reaper has the batch {batch.id}")
        reached(Moment.DELIVERING)


def _refuse_reopened(connection: Connection, batch: ApiBatch, job: Job | None) -> None:
    """LeaseLost where the job is not as it was when its files were written. From here on nobody reopens
    it before the end of the transaction.
    """
    api_batches.locked(connection, batch.tenant, batch.id)  # before its job, as everywhere
    if job is None:
        return
    if jobs.get(connection, job.id) is None:
        raise LeaseLost(f"{job.label} was deleted")
    jobs.lock(connection, job.id)
    now = jobs.get(connection, job.id)
    assert now is not None
    if (now.closed_at, now.retries) != (job.closed_at, job.retries):
        raise LeaseLost(f"{job.label} runs again")


def _usage(progress: dict[str, Any], thoughts: int) -> dict[str, Any]:
    """What the requests took, also those whose answers were not kept; of the tokens of the output so many are
    `thoughts`.
    """
    spent = ("prompt_tokens_spent", "output_tokens_spent")
    prompt, output = (int(progress.get(name) or 0) for name in spent)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": thoughts},
        "total_tokens": prompt + output,
    }


@contextmanager
def _result_files(
    ledger: Ledger, settings: Settings, batch: ApiBatch
) -> Iterator[tuple[ResultFile, ResultFile]]:
    """The files of answers and of errors on their way. Where the block fails, the next sweep takes them: a
    batch is tried again each minute, and each try writes as much as the results have.
    """
    answers, errors = (_new_file(ledger, settings, batch) for _ in range(2))
    try:
        yield answers, errors
    except BaseException:
        with suppress(LedgerUnavailable), ledger.transaction() as connection:
            files.abandon(connection, [answers.id, errors.id])
        raise


def _new_file(ledger: Ledger, settings: Settings, batch: ApiBatch) -> ResultFile:
    file_id = ids.new("file-")
    file = ResultFile(file_id, store_layout.file(settings, batch.tenant, file_id))
    with ledger.transaction() as connection:
        files.receive(connection, file.id, batch.tenant, file.uri)
    return file


def _noted(
    records: Iterator[pa.RecordBatch],
    answered: NDArray[np.bool_],
    answers: "ResultFile",
    work: Renewed,
) -> Iterator[pa.RecordBatch]:
    """The same rows; notes which have an outcome, and the tokens of thoughts."""
    rows = 0
    for batch in records:
        answers.reasoning_tokens += openai_batch_results.reasoning_tokens(batch)
        answered[batch.column("row_index").to_numpy()] = True
        rows += batch.num_rows
        if rows >= ROWS_A_CHECK:
            work.check()
            rows = 0
        yield batch


def _unanswered(
    job: Job, answered: NDArray[np.bool_], work: Renewed
) -> Iterator[tuple[int, str | None]]:
    """The rows without an outcome; their ids are read from the input."""
    requests = (
        text for uri in job.spec.input.uris for text in streams.lines(uri) if not is_blank(text)
    )
    for row_index, text in enumerate(requests):
        if row_index % ROWS_A_CHECK == ROWS_A_CHECK - 1:
            work.check()
        if row_index < len(answered) and not answered[row_index]:
            yield row_index, _id(text)


def _id(text: bytes) -> str | None:
    try:
        return id_of(text, parse_line(text))
    except ValueError:
        return None
