"""The objects of `/v1` as the OpenAPI document shows them; field by field those of OpenAI's document."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """An object with these members and no others."""

    model_config = ConfigDict(extra="forbid")


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
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]


class FileList(Shape):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Shape):
    """A file that is gone."""

    id: str
    object: Literal["file"]
    deleted: bool


class BatchError(Shape):
    """What is wrong with a batch file; `line` counts from 1."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(Shape):
    """Everything that is wrong with a batch."""

    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Shape):
    """How many requests a batch has, and how many are over."""

    total: int
    completed: int
    failed: int


class BatchObject(Shape):
    """A batch; times are seconds since 1970."""

    id: str
    object: Literal["batch"]
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


class BatchList(Shape):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelObject(Shape):
    """A name of a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Shape):
    """Every name of a model."""

    object: Literal["list"]
    data: list[ModelObject]
