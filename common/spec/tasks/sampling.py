"""How the next token is chosen: for all rows of a job, and for each row by its own columns."""

from typing import Any, Self

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from nightshift.common.spec.section import STORED, Absent, Section

MOST_SAMPLES = 128
"""Most samples of one row: they share the row's place in a batch, and other rows wait for all of them."""

THINKING_TOKENS = 8192
"""Longest answer of a model that thinks, thoughts included, where a spec names none; makers of this year's
models test them with 8,000 to 32,000."""

MOST_TEMPERATURE = 2
"""The most that vLLM's SamplingParams and OpenAI's API accept."""

USUAL_LOGPROBS = 20
"""Likeliest tokens that an engine of vLLM tells without an argument of its own."""


class Sampling(Section):
    """How the next token is chosen; the names and ranges of vLLM's SamplingParams."""

    temperature: float = Field(
        0.0,
        ge=0,
        le=MOST_TEMPERATURE,
        description="0 is greedy; at most 2, as vLLM and OpenAI's API have it.",
    )
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
    max_tokens: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="Longest answer, in tokens, the thinking before it included. Without a value a "
        "model that thinks gets more than the default, which `status` shows.",
    )
    max_tokens_column: Absent[str] = Field(
        None,
        min_length=1,
        description="Integer column that holds a row's own longest answer, in tokens; at most "
        "max_tokens, which also holds where it is null.",
    )
    min_tokens: int = Field(0, ge=0, description="Shortest answer, in tokens.")
    stop: list[str] = Field(default_factory=list, description="Strings that end the answer.")
    ignore_eos: bool = Field(
        False, description="Generate max_tokens, past the end of the answer; for benchmarks."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the job; a row's own is derived.")
    n: int = Field(
        1,
        ge=1,
        le=MOST_SAMPLES,
        description="Samples of each row. With more than one the column `outputs`, a list, takes the "
        "place of `output`.",
        exclude_if=lambda value: value == 1,
    )
    logprobs: Absent[int] = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Column `logprobs`: of each token of the answer its log probability before "
        "temperature and penalties, and those of this many of the likeliest tokens; with output among the "
        "allowed ones. Above 20 an argument of the engine, too.",
    )
    prompt_logprobs: Absent[int] = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Column `prompt_logprobs`: the same for the tokens of the prompt. The engine's prefix "
        "cache is not read then.",
    )

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

    @model_serializer(mode="wrap")
    def _for_ledger(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """The ledger keeps max_tokens only where the spec has it, so that a later reader can tell."""
        written: dict[str, Any] = handler(self)
        if info.context == STORED and not self.has_max_tokens:
            written.pop("max_tokens", None)
        return written

    @property
    def has_max_tokens(self) -> bool:
        """Whether the spec says how long an answer may be; a model that thinks gets more otherwise."""
        return "max_tokens" in self.model_fields_set

    @property
    def most_logprobs(self) -> int:
        """The most tokens that an engine is asked for at one place."""
        return max(self.logprobs or 0, self.prompt_logprobs or 0)


class SamplingColumns(Section):
    """Columns that hold a row's own sampling; the job's holds where a value is null."""

    temperature: Absent[str] = Field(None, min_length=1, description="Column of the temperature.")
    top_p: Absent[str] = Field(None, min_length=1, description="Column of top_p.")
    top_k: Absent[str] = Field(None, min_length=1, description="Column of top_k, integers.")
    min_p: Absent[str] = Field(None, min_length=1, description="Column of min_p.")
    repetition_penalty: Absent[str] = Field(
        None, min_length=1, description="Column of the repetition penalty."
    )
    presence_penalty: Absent[str] = Field(
        None, min_length=1, description="Column of the presence penalty."
    )
    frequency_penalty: Absent[str] = Field(
        None, min_length=1, description="Column of the frequency penalty."
    )
    max_tokens: Absent[str] = Field(
        None,
        min_length=1,
        description="Column of the longest answer, integers; sampling.max_tokens stays the bound.",
    )
    min_tokens: Absent[str] = Field(
        None, min_length=1, description="Column of the shortest answer, integers."
    )
    seed: Absent[str] = Field(
        None, min_length=1, description="Column of a row's own seed, integers, taken as it is."
    )

    @property
    def named(self) -> dict[str, str]:
        """The columns by what they hold."""
        return self.model_dump(exclude_none=True)
