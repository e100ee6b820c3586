"""The job spec: what a user writes in YAML or flags, and what the ledger keeps as JSON."""

import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from nightshift.common.errors import BadInput
from nightshift.common.spec.engines import (
    PRICES,
    SERVER_ARGUMENTS,
    Engine,
    EngineSection,
    VllmEngineSpec,
)
from nightshift.common.spec.file import read_yaml, unusual
from nightshift.common.spec.section import STORED, Section
from nightshift.common.spec.tasks import PARSED, REQUEST_ID, Task

RESERVED_COLUMNS = frozenset(
    {"row_index", "output", "finish_reason", "prompt_tokens", "output_tokens", "error"}
)
"""Names of the output's own columns; input columns that are passed through cannot use them."""

RESERVED_ANSWERS = RESERVED_COLUMNS - {"output"}
"""Those that a function's answer cannot use either: `output` is the answer itself."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class InputSpec(Section):
    """Which rows go in."""

    uri: str | list[str] = Field(
        description="A file, a directory, a glob or a list of them; local path, s3:// or gs://."
    )
    format: Literal["parquet", "jsonl", "csv", "openai"] | None = Field(
        None,
        description="Format of every file; inferred from the suffix when absent. openai is an "
        "OpenAI batch file, which goes with task.kind requests: either implies the other.",
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        description="What stands between the fields of CSV; absent: a tab in .tsv, else a comma.",
        exclude_if=lambda value: value is None,
    )
    partitioning: Literal["hive", "none"] | None = Field(
        None,
        description="hive makes columns of folders called key=value; none does not. Absent: hive "
        "where every file lies in folders of the same keys.",
        exclude_if=lambda value: value is None,
    )
    id: str | None = Field(
        None,
        description="Column that names a row; always in the output, under its own name. "
        "Without it `row_index` alone tells the rows apart.",
    )
    columns: list[str] | None = Field(
        None, description="Columns that templates and functions see; all when absent."
    )
    limit: int | None = Field(None, ge=1, description="Take only the first rows of the dataset.")

    @field_validator("uri")
    @classmethod
    def _some_uri(cls, value: str | list[str]) -> str | list[str]:
        uris = [value] if isinstance(value, str) else value
        if not uris or not all(uri.strip() for uri in uris):
            raise ValueError("name at least one file, directory or glob")
        return value

    @field_validator("delimiter")
    @classmethod
    def _some_delimiter(cls, value: str | None) -> str | None:
        if value is not None and (not value.isascii() or value in '"\r\n\0'):
            raise ValueError("one ASCII character that is no quote and no line end")
        return value

    @property
    def uris(self) -> list[str]:
        """The uri as a list, whichever way it was written."""
        return [self.uri] if isinstance(self.uri, str) else list(self.uri)


class OutputSpec(Section):
    """Where the parts go and what they carry."""

    uri: str = Field(min_length=1, description="Output directory; local path, s3:// or gs://.")
    format: Literal["parquet", "jsonl"] = Field(
        "parquet",
        description="Format of the parts: Parquet (zstd, from 16 KiB on), or plain JSON lines.",
    )
    columns: list[str] = Field(
        default_factory=list, description="Input columns passed through beside the id."
    )
    output_schema: dict[str, str] | None = Field(
        None,
        alias="schema",
        description="Column name to Arrow type of what a function returns: string, int64, double, "
        "bool, timestamp[us], list<float>, list<float>[384], struct<a: int64, b: string>, …; else "
        "the first answers decide.",
    )

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("uri")
    @classmethod
    def _some_uri(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("name an output directory")
        return value


class BatchSpec(Section):
    """The unit of leasing, retry and output."""

    rows: int = Field(256, ge=1, le=1_000_000, description="Rows a batch, at most.")


class RetrySpec(Section):
    """How often and how long a batch is tried."""

    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="Retryable failures before a batch is dead; losses of a worker do not count.",
    )
    row_timeout_seconds: float = Field(
        600, gt=0, le=86_400, description="Longest time one row may take in the engine, seconds."
    )


class LimitsSpec(Section):
    """What a job may take and when it stops itself."""

    max_parallel: int | None = Field(
        None, ge=1, description="Batches of this job that are queued or leased at once."
    )
    max_failed_fraction: float = Field(
        0.5, ge=0, le=1, description="Share of failed rows that pauses the job, after 200 rows."
    )
    budget: float | None = Field(
        None,
        gt=0,
        exclude_if=lambda value: value is None,
        description="Money, in the currency of the engine's prices, that the job may spend: it "
        "pauses before it would pass it.",
    )


class JobSpec(Section):
    """One run of a model over one dataset into one output directory."""

    name: Name = Field(description="Label of the job; letters, digits, dot, dash, underscore.")
    pool: Name = Field("default", description="Group of workers that may run the job.")
    priority: int = Field(
        0, ge=-1000, le=1000, description="Higher goes first; jobs of equal priority share."
    )
    input: InputSpec = Field(description="Which rows go in.")
    task: Task = Field(description="What is done with a row.")
    engine: Engine = Field(description="What does it.")
    output: OutputSpec = Field(description="Where the parts go.")
    batch: BatchSpec = Field(
        default_factory=lambda: BatchSpec.model_validate({}), description="Unit of leasing."
    )
    retry: RetrySpec = Field(
        default_factory=lambda: RetrySpec.model_validate({}), description="How often, how long."
    )
    limits: LimitsSpec = Field(
        default_factory=lambda: LimitsSpec.model_validate({}), description="When it stops itself."
    )

    @model_validator(mode="before")
    @classmethod
    def _batch_file(cls, data: Any) -> Any:
        return _with_batch_file(data)

    @model_validator(mode="after")
    def _sections_fit(self, info: ValidationInfo) -> Self:
        if self.task.kind not in self.engine.tasks:
            raise ValueError(
                f"engine.backend {self.engine.backend} runs task.kind "
                f"{' or '.join(sorted(self.engine.tasks))}, not {self.task.kind}"
            )
        if self.name.isdigit():
            raise ValueError("name is only digits, which would look like a job number")
        passed = self.passed_columns
        for column in passed:
            if info.context == STORED and column == PARSED:
                continue  # from before there was such a column
            if column in RESERVED_COLUMNS or column in self.task.answers:
                raise ValueError(f"the column name {column!r} is reserved for the output")
        if len(set(passed)) < len(passed):
            raise ValueError("output.columns names a column twice (the id is always there)")
        if self.limits.budget is not None and not self.engine.has_price:
            raise ValueError(
                "limits.budget needs a price: say engine.price_per_hour or a price of tokens"
            )
        declared = self.output.output_schema or {}
        if declared and self.task.kind != "function":
            raise ValueError("output.schema is for functions; other tasks have a fixed schema")
        for column in declared:
            if column in RESERVED_ANSWERS or column in passed:
                raise ValueError(f"output.schema names {column!r}, which the output already has")
        return self

    @model_validator(mode="after")
    def _arguments_fit(self, info: ValidationInfo) -> Self:
        if not isinstance(self.engine, VllmEngineSpec) or self.task.kind == "requests":
            return self
        for key in sorted(SERVER_ARGUMENTS & self.engine.args.keys()):
            if info.context != STORED:
                raise ValueError(
                    f"engine.args.{key} is for vLLM's OpenAI server, which task.kind requests asks "
                    f"and {self.task.kind} does not"
                )
        return self

    @model_validator(mode="after")
    def _batch_file_fits(self) -> Self:
        if (self.task.kind == "requests") != (self.input.format == "openai"):
            raise ValueError(
                "task.kind requests and input.format openai, an OpenAI batch file, go together"
            )
        if self.input.format == "openai" and self.input.id != REQUEST_ID:
            raise ValueError(f"input.id of an OpenAI batch file is {REQUEST_ID}")
        return self

    @property
    def identity(self) -> str:
        """Hash of what makes two specs the same work; name, priority, limits, prices and batch size
        do not.
        """
        sections = {"input", "task", "engine", "output"}
        said = self.model_dump(mode="json", by_alias=True, include=sections)
        said["engine"] = {key: each for key, each in said["engine"].items() if key not in PRICES}
        return digest(said)

    @property
    def passed_columns(self) -> list[str]:
        """Input columns that stand in the output, the id first."""
        return [*([self.input.id] if self.input.id else []), *self.output.columns]

    @property
    def read_columns(self) -> list[str] | None:
        """Input columns that a worker reads; None is all of them."""
        if self.task.kind != "function":
            wanted = [*self.passed_columns, *sorted(self.task.columns)]
        elif self.input.columns is not None:
            wanted = [*self.passed_columns, *self.input.columns]
        else:
            return None
        return list(dict.fromkeys(wanted))

    @property
    def engine_key(self) -> str:
        """Hash of what changes the loaded engine: 16 hexadecimal digits."""
        engine = self.engine.model_dump(mode="json", exclude=set(PRICES))
        return digest({"engine": engine, "runner": self.task.runner})[:16]


def _with_batch_file(data: Any) -> Any:
    """A spec with what an OpenAI batch file implies filled in: its task, its format, its id."""
    if not isinstance(data, dict) or not isinstance(data.get("input"), dict):
        return data
    task = data.get("task", {})
    if data["input"].get("format") == "openai":
        task = data.get("task", {"kind": "requests"})
    if not isinstance(task, dict) or task.get("kind") != "requests":
        return data
    implied = {"format": "openai", "id": REQUEST_ID}
    said = {name: each for name, each in data["input"].items() if each is not None}
    return {**data, "task": task, "input": {**implied, **said}}


def digest(value: object) -> str:
    """SHA-256 of canonical JSON, hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_spec(data: object, source: str) -> JobSpec:
    """Checks a mapping; `source` names it in the BadInput that lists every mistake."""
    if not isinstance(data, dict):
        raise BadInput(f"{source}: a job spec is a mapping of sections, see docs/spec.md")
    if mistakes := list(islice(unusual(data), 5)):
        raise BadInput(f"{source}: {'; '.join(mistakes)}")
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise BadInput(f"{source}: {'; '.join(_mistakes(error))}") from error


def load_spec(path: Path) -> JobSpec:
    """Reads one YAML spec; BadInput when it is unreadable, too large, no YAML or not valid."""
    return parse_spec(read_yaml(path), str(path))


TAGS = frozenset({kind for engine in EngineSection.__subclasses__() for kind in engine.tasks}) | {
    "vllm",
    "transformers",
    "openai",
    "template",
    "parts",
    "image",
}
"""What pydantic puts into a place to say which of a union it means."""


def _mistakes(error: ValidationError) -> list[str]:
    """One phrase a mistake, with the dotted place; union tags are left out of the place."""
    lines = []
    for mistake in error.errors():
        place = ".".join(str(step) for step in mistake["loc"] if step not in TAGS)
        said = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            said = "unknown key"
        lines.append(f"{place}: {said}" if place else said)
    return lines
