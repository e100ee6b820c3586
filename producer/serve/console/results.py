"""Results of a job as a file: what its page offers, and the file."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_facts, live_parts
from nightshift.producer.serve import downloads
from nightshift.producer.serve.console.page_calls import Visit, streamed

TITLES = {"parquet": "Parquet", "jsonl": "JSONL", "csv": "CSV"}


def offered(ledger: Ledger, job: Job) -> dict[str, Any]:
    """What the page says of the file: its rows now, of how many, and how large the parts are with them."""
    with ledger.transaction() as connection:
        row = jobs.progress(connection, job.id)
        is_arranged = job_facts.is_arranged(connection, job.id)
        known, size = live_parts.part_size(connection, job.id)
    rows = row["rows_done"] + row["rows_failed"]
    return {
        "formats": TITLES,
        "sample_rows": downloads.SAMPLE_ROWS,
        "rows": rows,
        "failed": row["rows_failed"],
        "total": row["rows_total"],
        "is_whole": rows == row["rows_total"] and job.closed_at is not None,
        "size": size_text(size * rows // known) if known else "",
        "is_arranged": is_arranged,
    }


def size_text(size: int) -> str:
    """A number of bytes as people say it."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:,.0f} {units[0]}" if value >= 100 else f"{value:.3g} {units[0]}"


async def send_results(request: Request, visit: Visit) -> Response:
    """The results of a job as a file."""
    return await downloads.transfer(request, visit.context, visit.looker.caller, visit.job)


ROUTES: list[Route] = [streamed("/jobs/{id}/results", send_results)]
