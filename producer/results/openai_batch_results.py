"""The output of a job of OpenAI requests in the form of the Batch API: a file of results and one of
errors beside it.

Rows with an answer go into the first, the others into the second, both in the order of the dataset:
together the files have one line for each row.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats.jsonl.openai_batch import given_id
from nightshift.common.formats.values import to_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import private
from nightshift.common.spec import REQUEST_ID, JobSpec, RequestsTask
from nightshift.common.states import JobState, RowErrorKind
from nightshift.common.text import counted, json_line
from nightshift.producer.results import part_files, target_file
from nightshift.producer.results.collect import rows_for

SUFFIX = ".jsonl"

COLUMNS = ("row_index", REQUEST_ID, "status_code", "request_id", "response", "error")

CODES = {RowErrorKind.TIMEOUT: "request_timeout"}
"""What the API calls a kind of error, where it has a word for it."""


@dataclass(slots=True)
class ResultFiles:
    """The two files, and how many lines each has."""

    results_file: str
    errors_file: str
    results: int = 0
    errors: int = 0


def collect(
    ledger: Ledger, job: Job, to: str, *, partial: bool = False, force: bool = False
) -> ResultFiles:
    """Writes the answers to the file `to`, and the errors beside it (see `errors_file`).

    Each file appears whole or not at all, the errors first. An empty file is written, too.
    `partial`, `force` and what is raised are those of `results.collect`.
    """
    done = _files(job.spec, to)
    job, rows = rows_for(
        ledger, job, [done.results_file, done.errors_file], partial=partial, force=force
    )

    def fill(results: BinaryIO, errors: BinaryIO) -> None:
        for line, is_answer in lines(job, part_files.read_ahead(rows)):
            (results if is_answer else errors).write(line)
            done.results, done.errors = done.results + is_answer, done.errors + (not is_answer)

    storage.write_whole(
        done.results_file,
        lambda results: storage.write_whole(
            done.errors_file, lambda errors: fill(results, errors), replace=True
        ),
        replace=True,
    )
    return done


def errors_file(results_file: str) -> str:
    """`x.errors.jsonl` for `x.jsonl` and for `x.results.jsonl`; BadInput for another suffix."""
    if not results_file.lower().endswith(SUFFIX):
        raise BadInput(f"{results_file}: the file of OpenAI results ends in {SUFFIX}")
    stem = results_file[: -len(SUFFIX)]
    return f"{stem.removesuffix('.results')}.errors{SUFFIX}"


def check_targets(spec: JobSpec, identity: str, to: str) -> None:
    """BadInput, before any work, for files that the job of this resolved spec must not write.

    An existing file may be replaced if the job of this `identity` has written it.
    """
    done = _files(spec, to)
    own = f'{{"id": "{_id_prefix(identity)}'.encode()
    for uri in (done.results_file, done.errors_file):
        target_file.refuse_inside(spec.output.uri, uri)
        if not storage.exists(uri) or not storage.stat(uri).size:
            continue
        if storage.read_range(uri, 0, len(own)) != own:
            raise BadInput(
                f"{private(uri)} exists and is not of this job of {spec.name}: name another file with --to"
            )


def report(ledger: Ledger, job: Job, to: str, console: Console) -> None:
    """Writes the files of a job that has an outcome for every row, and says where they are."""
    with ledger.transaction() as connection:
        progress = jobs.progress(connection, job.id)
    over = progress["rows_done"] + progress["rows_failed"]
    if job.state is JobState.CANCELLED or job.closed_at is None or over < progress["rows_total"]:
        return
    done = collect(ledger, job, to, force=True)
    console.print(summary(done), soft_wrap=True, highlight=False, markup=False)


def summary(done: ResultFiles) -> str:
    """Both files with their lines, for a person."""
    return (
        f"{counted(done.results, 'result')} in {done.results_file}\n"
        f"{counted(done.errors, 'error')} in {done.errors_file}"
    )


def _files(spec: JobSpec, to: str) -> ResultFiles:
    if not isinstance(spec.task, RequestsTask):
        raise BadInput(
            f"the job {spec.name} is of task.kind {spec.task.kind}, and only jobs of OpenAI "
            "requests have results in that format"
        )
    results_file = storage.resolve(to)
    return ResultFiles(results_file, errors_file(results_file))


def lines(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, bool]]:
    """One line of JSON a row, with its line end, and whether the line is an answer."""
    prefix = _id_prefix(job.identity)
    for batch in batches:
        for row in to_rows(pa.Table.from_batches([batch]).select(COLUMNS)):
            yield f"{_line(prefix, row)}\n".encode(), row["error"] is None


def reasoning_tokens(batch: pa.RecordBatch) -> int:
    """How many of the output tokens of these rows are thoughts, as the bodies of the answers say."""
    bodies = batch.column("response")
    named = pc.match_substring(bodies, '"reasoning_tokens"')
    found = 0
    for body in bodies.filter(named).to_pylist():
        usage = json.loads(body).get("usage") or {}
        details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
        count = details.get("reasoning_tokens")
        found += count if isinstance(count, int) else 0
    return found


def error_line(job: Job, row_index: int, custom_id: str | None, code: str, message: str) -> bytes:
    """The line of a row that never ran, as `lines` would have it."""
    error = {"kind": code, "message": message}
    row = {"row_index": row_index, REQUEST_ID: custom_id, "response": None, "error": error}
    return f"{_line(_id_prefix(job.identity), row)}\n".encode()


def _id_prefix(identity: str) -> str:
    """What the ids of this job's lines begin with; the row's number follows."""
    return f"batch_req_{identity[:20]}"


def _line(prefix: str, row: dict[str, Any]) -> str:
    response = error = "null"
    if row["response"] is not None:
        # White space is all that a line break in JSON can be.
        body = row["response"].replace("\n", " ").replace("\r", " ")
        response = (
            f'{{"status_code": {_text(row["status_code"])}, "request_id": {_text(row["request_id"])}, '
            f'"body": {body}}}'
        )
    # The body of an HTTP error says what was wrong. That of a 2xx response which has no answer does not.
    if row["error"] is not None and (row["response"] is None or row["status_code"] < 300):
        kind = row["error"]["kind"]
        error = _text({"code": CODES.get(kind, kind), "message": row["error"]["message"]})
    return json_line(
        f'{{"id": "{prefix}{row["row_index"]:012x}", "custom_id": {_id_text(row[REQUEST_ID])}, '
        f'"response": {response}, "error": {error}}}'
    )


def _id_text(stored: str | None) -> str:
    """The id as JSON. What stands for half of a character in UTF-8 is its escape in JSON, too."""
    text = _text(None if stored is None else given_id(stored))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
