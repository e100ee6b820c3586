"""The manifest: `_manifest.json`, which says what a job was, how it ended and which parts it has."""

import json
from typing import BinaryIO

from nightshift.common import provenance, storage
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger, Row, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.ledger.queries import live_parts
from nightshift.common.states import JobState
from nightshift.producer.results import part_files


def write(ledger: Ledger, job: Job) -> tuple[JobState, int]:
    """Streams the manifest, since a job may have a million parts.

    Returns the end state that the manifest names, and the number of retries that the job had when
    the manifest was begun.
    """
    # The job may have been cancelled since finish began, also while this process was frozen.
    with ledger.transaction() as connection:
        job = jobs.get(connection, job.id) or job
        progress = jobs.progress(connection, job.id)
    end = _end(job, progress)
    head = json.dumps(_head(ledger, job, progress, end), indent=1, ensure_ascii=False)

    def fill(sink: BinaryIO) -> None:
        sink.write(head.removesuffix("\n}").encode() + b',\n "parts": [')
        separator = b"\n  "
        for entries in part_files.pages_of(ledger, job, live_parts.entries_between):
            for entry in entries:
                sink.write(separator + entry.encode())
                separator = b",\n  "
        sink.write(b"\n ]\n}\n")

    storage.write_whole(part_names.final(job.output_uri, part_names.MANIFEST), fill, replace=True)
    return end, job.retries


def _end(job: Job, progress: Row) -> JobState:
    """The state that close will give the job."""
    if job.state.over:
        return job.state
    return JobState.FAILED if progress["batches_dead"] else JobState.COMPLETED


def _head(ledger: Ledger, job: Job, progress: Row, end: JobState) -> dict[str, object]:
    with ledger.transaction() as connection:
        files = jobs.files(connection, job.id)
        revision = live_parts.revision(connection, job.id)
        makers = live_parts.makers(connection, job.id)
    over = progress["rows_done"] + progress["rows_failed"]
    return {
        "job": job.id,
        "name": job.spec.name,
        "status": str(end),
        "complete": over == progress["rows_total"],
        "rows": over,
        "rows_total": progress["rows_total"],
        "rows_failed": progress["rows_failed"],
        "prompt_tokens": progress["prompt_tokens"],
        "output_tokens": progress["output_tokens"],
        "created_at": job.created_at.isoformat(),
        "code_version": provenance.code_version(),
        "model": provenance.model_of(job.spec),
        "revision": revision,
        "engines": [dict(maker) for maker in makers],
        "format": job.spec.output.format,
        "spec": job.spec.model_dump(mode="json", by_alias=True),
        "schema": [
            {"name": field.name, "type": str(field.type)} for field in part_files.schema_of(job)
        ],
        "input_files": [
            {
                "uri": file.uri,
                "bytes": file.size,
                "fingerprint": file.fingerprint,
                "rows": file.rows,
            }
            for file in files
        ],
    }
