"""The manifest: `_manifest.json`, which says what a job was, how it ended and which parts it has."""

import json
from collections.abc import Iterable
from typing import Any, BinaryIO

from nightshift.common import provenance, storage
from nightshift.common.descriptor import SourceFile
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger, Row
from nightshift.common.ledger.jobs import generations, input_versions, jobs
from nightshift.common.ledger.jobs.generations import Generation
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import live_parts
from nightshift.common.public_text import private
from nightshift.common.spec import GenerateTask, JobSpec
from nightshift.common.states import JobState
from nightshift.producer.results import part_files
from nightshift.producer.submit import owned_files
from nightshift.producer.views.facts import contributed
from nightshift.producer.views.versions import versions

MOST_BYTES = 256 * 1024 * 1024
"""A larger manifest is refused: that of a million parts has 200 MB."""


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
    pages = part_files.pages_of(ledger, job, live_parts.entries_between)
    uri = part_names.final(job.output_uri, part_names.MANIFEST)
    stream(ledger, job, uri, _head(ledger, job, progress, end), pages)
    return end, job.retries


def stream(
    ledger: Ledger, job: Job, uri: str, head: dict[str, object], pages: Iterable[Iterable[str]]
) -> None:
    """Writes a JSON object with the `head`, and the entries of `parts` behind it, to a file about the job."""
    text = json.dumps(head, indent=1, ensure_ascii=False)

    def fill(sink: BinaryIO) -> None:
        sink.write(text.removesuffix("\n}").encode() + b',\n "parts": [')
        separator = b"\n  "
        for entries in pages:
            for entry in entries:
                sink.write(separator + entry.encode())
                separator = b",\n  "
        sink.write(b"\n ]\n}\n")

    owned_files.write(ledger, job, uri, fill)


def part_names_in(job: Job) -> list[str]:
    """Names of the parts that a manifest says the job has; none without a manifest that can be read.
    BadInput for one that is larger than any of ours.
    """
    uri = part_names.final(job.output_uri, part_names.MANIFEST)
    try:
        with storage.open_input(uri, links=False) as file:
            text = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, BadInput):
        return []
    if len(text) > MOST_BYTES:
        raise BadInput(
            f"{private(uri)} has more than {MOST_BYTES:,} bytes, which no manifest of ours has: move the file "
            "away; parts that this file alone names then stay where they are"
        )
    try:
        # A manifest may name a million parts.
        found = json.loads(text, object_hook=lambda entry: entry.get("parts", entry.get("name")))
    except (ValueError, RecursionError):
        return []
    names = found if isinstance(found, list) else []
    return [name for name in names if isinstance(name, str) and part_names.is_part(name)]


def _end(job: Job, progress: Row) -> JobState:
    """The state that close will give the job."""
    if job.state.over:
        return job.state
    return JobState.FAILED if progress["batches_dead"] else JobState.COMPLETED


def _head(ledger: Ledger, job: Job, progress: Row, end: JobState) -> dict[str, object]:
    with ledger.transaction() as connection:
        files = jobs.files(connection, job.id)
        grown = generations.listed(connection, job.id)
        revision = live_parts.revision(connection, job.id)
        makers = live_parts.makers(connection, job.id)
        of_wings = contributed(connection, job.id, whole=job.own is None)
        made_by = versions(connection, job.id)
        taken = input_versions.get(connection, job.id)
    over = progress["rows_done"] + progress["rows_failed"]
    return {
        "job": job.id,
        "name": job.spec.name,
        "status": str(end),
        "complete": over == progress["rows_total"],
        "rows": over,
        "rows_total": progress["rows_total"],
        "rows_failed": progress["rows_failed"],
        **_left_out(sum(file.left_out for file in files)),
        "prompt_tokens": progress["prompt_tokens"],
        "output_tokens": progress["output_tokens"],
        "created_at": job.created_at.isoformat(),
        "code_version": provenance.code_version(),
        "model": provenance.model_of(job.spec),
        "revision": revision,
        "engines": [dict(maker) for maker in makers],
        "versions": made_by.as_json,
        "format": job.spec.output.format,
        **_input_table(job, taken),
        "spec": _written(job.spec),
        "schema": [
            {"name": field.name, "type": str(field.type)} for field in part_files.schema_of(job)
        ],
        **{name: each.as_json for name, each in of_wings.items()},
        **({"generations": [generation_facts(each) for each in grown]} if grown else {}),
        "input_files": [file_facts(file) for file in files],
    }


def _input_table(job: Job, taken: tuple[int, str] | None) -> dict[str, object]:
    """The table that the job has read, the version of its submit, and that up to which it has what came later."""
    table = job.spec.input.table
    if table is None:
        return {}
    version = job.spec.input.version
    last, number = taken or (version, None)
    facts = {"uri": table, "id": number, "version": version, "appended_until": last}
    return {"input_table": facts}


def file_facts(file: SourceFile) -> dict[str, object]:
    """What a manifest says of an input file."""
    return {
        "uri": file.uri,
        "bytes": file.size,
        "fingerprint": file.fingerprint,
        "rows": file.rows,
        **_left_out(file.left_out),
    }


def generation_facts(generation: Generation) -> dict[str, object]:
    """What a manifest says of a generation: its rows are `first_row` to before `stop_row`, without those
    that `input.where` leaves out.
    """
    finished = generation.finished_at
    return {
        "number": generation.number,
        "first_row": generation.first_row,
        "stop_row": generation.stop_row,
        **_left_out(generation.left_out),
        "files": generation.stop_file - generation.first_file,
        "planned_at": generation.planned_at.isoformat(),
        "finished_at": None if finished is None else finished.isoformat(),
    }


def _left_out(rows: int) -> dict[str, int]:
    """How many rows `input.where` leaves out; nothing is said of none."""
    return {"rows_left_out": rows} if rows else {}


def _written(spec: JobSpec) -> dict[str, Any]:
    """The spec with its defaults, except a bound of answers that the model itself may have set."""
    written = spec.model_dump(mode="json", by_alias=True)
    if isinstance(spec.task, GenerateTask) and not spec.task.sampling.has_max_tokens:
        del written["task"]["sampling"]["max_tokens"]
    return written
