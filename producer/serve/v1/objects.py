"""Rows of the ledger as objects of the OpenAI API."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nightshift.producer.serve.ledger.api_batches import ApiBatch, ApiBatchStatus
from nightshift.producer.serve.ledger.files import File
from nightshift.producer.serve.v1.schemas import BatchObject, FileObject

NO_USAGE: Mapping[str, Any] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}

MOMENTS = (
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def file(row: File) -> FileObject:
    """A file; times are whole seconds since 1970."""
    return FileObject(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at.timestamp()),
        expires_at=seconds(row.expires_at),
        filename=row.filename,
        purpose=row.purpose,
    )


def batch(row: ApiBatch, counts: Mapping[str, int]) -> BatchObject:
    """A batch; `counts` are its rows: total, completed, failed."""
    over = row.state.over
    return BatchObject.model_validate(
        {
            "id": row.id,
            "endpoint": row.endpoint,
            "model": row.model,
            "errors": None if row.errors is None else {"data": row.errors},
            "input_file_id": row.input_file_id,
            "completion_window": row.completion_window,
            "status": str(row.state),
            "output_file_id": row.output_file_id if over else None,
            "error_file_id": row.error_file_id if over else None,
            "created_at": seconds(row.created_at),
            **{name: seconds(getattr(row, name)) for name in MOMENTS},
            "request_counts": counts,
            "usage": row.usage or NO_USAGE,
            "metadata": row.metadata,
        }
    )


def counts(row: ApiBatch, running: Mapping[Any, Any] | None) -> dict[str, int]:
    """How many rows a batch has, and how many are over: its job's while it runs (`running` is the
    row of job_progress), also those that workers have not committed yet; its own before and after. A row
    that had no answer when its batch ended counts as failed.
    """
    if running is None or row.state.over or row.state is ApiBatchStatus.VALIDATING:
        return {
            "total": row.rows_total,
            "completed": row.rows_completed,
            "failed": row.rows_failed + row.rows_unanswered,
        }
    return {
        "total": int(running["rows_total"]),
        "completed": int(running["rows_done"] + running["rows_done_uncommitted"]),
        "failed": int(running["rows_failed"] + running["rows_failed_uncommitted"]),
    }


def seconds(moment: datetime | None) -> int | None:
    """Whole seconds since 1970."""
    return None if moment is None else int(moment.timestamp())
