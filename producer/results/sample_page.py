"""A sample as lines of JSON, or as one HTML file, which has no script, makes no request, and escapes
whatever comes from the data.
"""

import hashlib
from base64 import b64encode
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from nightshift.common import storage
from nightshift.common.formats.jsonl.write import encode_row
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.provenance import model_of
from nightshift.common.text import counted
from nightshift.producer.results import target_file
from nightshift.producer.results.sample import Sample
from nightshift.producer.views.rates import Values
from nightshift.producer.views.values import error_text, value_text

CELL_CHARACTERS = 4_000
"""Longest text of a cell."""


def write(ledger: Ledger, job: Job, drawn: Sample, to: str) -> None:
    """Writes the page to the file `to`; an older file is replaced."""
    target = storage.resolve(to)
    target_file.refuse_inside(job.output_uri, target)
    with ledger.transaction() as connection:
        progress = jobs.progress(connection, job.id)
    storage.write_bytes(target, page(job, progress, drawn).encode())


def lines(drawn: Sample) -> str:
    """The sample for machines: a line of JSON for each row."""
    outputs = [name for name in drawn.outputs if name != "error"]
    rows = (
        {
            "row_index": row["row_index"],
            "input": {name: row.get(name) for name in drawn.inputs},
            "output": {name: row.get(name) for name in outputs},
            "error": row["error"],
        }
        for row in drawn.rows
    )
    return "".join(f"{encode_row(row).decode()}\n" for row in rows)


def page(job: Job, progress: Values, drawn: Sample) -> str:
    """The whole file. The same sample of the same finished job gives the same bytes."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    folder = files("nightshift.producer.results")
    source = (folder / "sample.html.jinja").read_text(encoding="utf-8")
    style = (folder / "sample.css").read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.from_string(source).render(
        title=f"{job.spec.name}: {counted(len(drawn.rows), 'row')}",
        style=style,
        style_digest=digest,
        facts=_facts(job, progress, drawn),
        note=value_text(drawn.note, CELL_CHARACTERS),
        rows=[_row(row, drawn) for row in drawn.rows],
        failed=sum(row["error"] is not None for row in drawn.rows),
    )


def _facts(job: Job, progress: Values, drawn: Sample) -> dict[str, str]:
    over = progress["rows_done"] + progress["rows_failed"]
    of = "failed" if drawn.errors_only else "finished"
    facts = {
        "job": f"{job.id}, {progress['status']}",
        "model": model_of(job.spec),
        "task": f"{job.spec.task.kind}, by {job.spec.engine.backend}",
        "rows": f"{over:,} of {progress['rows_total']:,}, {progress['rows_failed']:,} failed",
        "tokens": f"{progress['prompt_tokens']:,} in, {progress['output_tokens']:,} out",
        "output": job.output_uri,
        "sample": f"{len(drawn.rows):,} of {counted(drawn.total, f'{of} row')}, "
        + (f"those with the least {drawn.by}" if drawn.by else f"seed {drawn.seed}"),
    }
    if not (progress["prompt_tokens"] or progress["output_tokens"]):
        del facts["tokens"]
    return {name: value_text(text, CELL_CHARACTERS) for name, text in facts.items()}


def _row(row: dict[str, Any], drawn: Sample) -> dict[str, Any]:
    return {
        "index": f"{row['row_index']:,}",
        "inputs": _cells(row, drawn.inputs),
        "outputs": _cells(row, [name for name in drawn.outputs if name != "error"]),
        "error": error_text(row["error"]),
        "usage": _usage(row),
    }


def _cells(row: dict[str, Any], names: list[str]) -> list[tuple[str, str]]:
    return [(value_text(name, 200), value_text(row.get(name), CELL_CHARACTERS)) for name in names]


def _usage(row: dict[str, Any]) -> str:
    """How the answer ended, and its tokens, on one line."""
    facts = [str(row["finish_reason"])] if row.get("finish_reason") else []
    if row.get("prompt_tokens") is not None:
        facts.append(f"{counted(row['prompt_tokens'], 'token')} in")
    if row.get("output_tokens") is not None:
        facts.append(f"{row['output_tokens']:,} out")
    return value_text(" · ".join(facts), 200)
