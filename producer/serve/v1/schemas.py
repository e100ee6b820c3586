"""The objects that `/v1` answers, which the OpenAPI document shows; field by field those of OpenAI's document."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """An object with these members and no others."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Error(Shape):
    """What was wrong; `code` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Shape):
    """Every answer that is a refusal or a failure."""

    error: Error


class FileObject(Shape):
    """A file; times are seconds since 1970."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class Page(Shape):
    """A page of a list."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, rows: list[Any], *, has_more: bool) -> Self:
        """Make a page of these rows; an empty one has nothing behind it."""
        return cls(
            data=rows,
            first_id=rows[0].id if rows else None,
            last_id=rows[-1].id if rows else None,
            has_more=has_more and bool(rows),
        )


class FileList(Page):
    """A page of files."""

    data: list[FileObject]


class FileDeleted(Shape):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool


class BatchError(Shape):
    """What is wrong with a batch file; `line` counts from 1."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(Shape):
    """Everything that is wrong with a batch."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(Shape):
    """How many requests a batch has, and how many are over."""

    total: int
    completed: int
    failed: int


class BatchObject(Shape):
    """A batch; times are seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: dict[str, Any]
    metadata: dict[str, str] | None


class BatchList(Page):
    """A page of batches."""

    data: list[BatchObject]


class ModelObject(Shape):
    """A name of a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(Shape):
    """Every name of a model."""

    object: Literal["list"] = "list"
    data: list[ModelObject]
