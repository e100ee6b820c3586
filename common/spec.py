"""The job spec: what a user writes in YAML or flags, and what the ledger keeps as JSON."""

import hashlib
import json
import re
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import jsonschema
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from common.errors import BadInput
from common.spec_file import read_yaml, unusual
from common.templates import template_columns

RESERVED_COLUMNS = frozenset(
    {"row_index", "output", "finish_reason", "prompt_tokens", "output_tokens", "error"}
)
"""Names of the output's own columns; input columns that are passed through cannot use them."""

RESERVED_ANSWERS = RESERVED_COLUMNS - {"output"}
"""Those that a function's answer cannot use either: `output` is the answer itself."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Section(BaseModel):
    """Every section refuses unknown keys and cannot be changed after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class InputSpec(Section):
    """Which rows go in."""

    uri: str | list[str] = Field(
        description="A file, a directory, a glob or a list of them; local path, s3:// or gs://."
    )
    format: Literal["parquet", "jsonl"] | None = Field(
        None, description="Format of every file; inferred from the suffix when absent."
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

    @property
    def uris(self) -> list[str]:
        """The uri as a list, whichever way it was written."""
        return [self.uri] if isinstance(self.uri, str) else list(self.uri)


class Message(Section):
    """One chat message; `content` is a Jinja template over the row's columns."""

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: str = Field(description="Template over the row's columns.")


class Sampling(Section):
    """How the next token is chosen; the names and ranges of vLLM's SamplingParams."""

    temperature: float = Field(0.0, ge=0, le=10, description="0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus share of probability mass.")
    top_k: int = Field(0, ge=0, description="Keep the k likeliest tokens; 0 keeps all.")
    min_p: float = Field(0.0, ge=0, le=1, description="Least probability relative to the best.")
    repetition_penalty: float = Field(
        1.0, gt=0, le=10, description="Above 1 makes tokens that occurred less likely."
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, description="Taken off the logit of each token that occurred."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, description="Taken off the logit for each time a token occurred."
    )
    max_tokens: int = Field(256, ge=1, le=1_000_000, description="Longest answer, in tokens.")
    max_tokens_column: str | None = Field(
        None,
        min_length=1,
        # Absent where it is not used: a job from before this field keeps its identity.
        exclude_if=lambda value: value is None,
        description="Integer column that holds a row's own longest answer, in tokens; at most "
        "max_tokens, which also holds where it is null.",
    )
    min_tokens: int = Field(0, ge=0, description="Shortest answer, in tokens.")
    stop: list[str] = Field(default_factory=list, description="Strings that end the answer.")
    ignore_eos: bool = Field(False, description="Go on to max_tokens; for benchmarks.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the job; a row's own is derived.")

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: list[str]) -> list[str]:
        if not all(value):
            raise ValueError("an empty stop string would end every answer at once")
        return value

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens is larger than max_tokens")
        return self


class StructuredOutput(Section):
    """What an answer must look like; one of the four."""

    choice: list[str] | None = Field(None, description="The answer is one of these strings.")
    json_schema: dict[str, Any] | None = Field(None, description="The answer is JSON of this form.")
    regex: str | None = Field(None, description="The answer matches this regular expression.")
    grammar: str | None = Field(None, description="The answer follows this EBNF grammar.")

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            try:
                jsonschema.Draft202012Validator.check_schema(value)
            except jsonschema.SchemaError as error:
                raise ValueError(f"is no JSON schema: {error.message}") from error
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of choice, json_schema, regex, grammar")
        for name in ("regex", "grammar"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} is empty")
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise ValueError(f"regex is no regular expression: {error}") from error
        if self.choice is not None and (not all(self.choice) or len(self.choice) < 1):
            raise ValueError("choice needs at least one string, and no empty ones")
        if self.choice is not None and len(set(self.choice)) < len(self.choice):
            raise ValueError("choice names the same string twice")
        return self


class GenerateTask(Section):
    """Text in, text out, by a language model."""

    kind: Literal["generate"] = Field(description="Text in, text out, by a language model.")
    messages: list[Message] | None = Field(None, description="Chat messages, as templates.")
    prompt: str | None = Field(
        None,
        description="A template; sent as one user message where the "
        "model has a chat template, else as plain text.",
    )
    sampling: Sampling = Field(
        default_factory=lambda: Sampling.model_validate({}),
        description="How the next token is chosen.",
    )
    output: StructuredOutput | None = Field(
        None, description="What an answer must look like; free text without it."
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        if self.messages is not None and not self.messages:
            raise ValueError("messages is empty")
        for template in self.templates:
            template_columns(template)
        return self

    @property
    def templates(self) -> list[str]:
        """Every template of the task, in order."""
        if self.messages is not None:
            return [message.content for message in self.messages]
        return [self.prompt or ""]

    @property
    def columns(self) -> frozenset[str]:
        """Input columns that the templates and the sampling name."""
        own = self.sampling.max_tokens_column
        return frozenset([own] if own else ()).union(
            *(template_columns(template) for template in self.templates)
        )


class FunctionTask(Section):
    """Rows in, columns out, by a Python function."""

    kind: Literal["function"] = Field(description="Rows in, columns out, by a Python function.")


class VllmEngine(Section):
    """A model in vLLM, loaded once a worker."""

    backend: Literal["vllm"] = Field(description="A model in vLLM, loaded once a worker.")
    model: str = Field(min_length=1, description="Hub name or local folder.")
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    args: dict[str, Any] = Field(
        default_factory=dict, description="Passed to vLLM's AsyncEngineArgs as they are."
    )

    @field_validator("args")
    @classmethod
    def _no_doubles(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in ("model", "revision"):
            if key in value:
                raise ValueError(f"say {key} beside args, not inside it")
        return value


class FunctionEngine(Section):
    """A Python callable: a list of row dicts in, a list of dicts of the same length out."""

    backend: Literal["function"] = Field(description="A Python callable.")
    callable: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="`module:name` of the function."
    )

    @property
    def module(self) -> str:
        """The module part of the callable."""
        return self.callable.partition(":")[0]


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
        description="Column name to Arrow type (string, int64, double, bool, …) of what a "
        "function returns; else the first answers decide.",
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


Task = Annotated[GenerateTask | FunctionTask, Field(discriminator="kind")]
Engine = Annotated[VllmEngine | FunctionEngine, Field(discriminator="backend")]


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

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        wants = "function" if isinstance(self.engine, FunctionEngine) else "generate"
        if self.task.kind != wants:
            raise ValueError(
                f"engine.backend {self.engine.backend} runs task.kind {wants}, not {self.task.kind}"
            )
        if self.name.isdigit():
            raise ValueError("name is only digits, which would look like a job number")
        passed = self.passed_columns
        for column in passed:
            if column in RESERVED_COLUMNS:
                raise ValueError(f"the column name {column!r} is reserved for the output")
        if len(set(passed)) < len(passed):
            raise ValueError("output.columns names a column twice (the id is always there)")
        declared = self.output.output_schema or {}
        if declared and self.task.kind != "function":
            raise ValueError("output.schema is for functions; other tasks have a fixed schema")
        for column in declared:
            if column in RESERVED_ANSWERS or column in passed:
                raise ValueError(f"output.schema names {column!r}, which the output already has")
        return self

    @property
    def passed_columns(self) -> list[str]:
        """Input columns that stand in the output, the id first."""
        return [*([self.input.id] if self.input.id else []), *self.output.columns]

    @property
    def read_columns(self) -> list[str] | None:
        """Input columns that a worker reads; None is all of them."""
        if isinstance(self.task, GenerateTask):
            wanted = [*self.passed_columns, *sorted(self.task.columns)]
        elif self.input.columns is not None:
            wanted = [*self.passed_columns, *self.input.columns]
        else:
            return None
        return list(dict.fromkeys(wanted))

    @property
    def engine_key(self) -> str:
        """Hash of what changes the loaded engine: 16 hexadecimal digits."""
        runner = "function" if self.task.kind == "function" else "generate"
        return digest({"engine": self.engine.model_dump(mode="json"), "runner": runner})[:16]


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


def _mistakes(error: ValidationError) -> list[str]:
    """One phrase a mistake, with the dotted place; union tags are left out of the place."""
    tags = {"generate", "function", "vllm"}
    lines = []
    for mistake in error.errors():
        place = ".".join(str(step) for step in mistake["loc"] if step not in tags)
        said = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            said = "unknown key"
        lines.append(f"{place}: {said}" if place else said)
    return lines
