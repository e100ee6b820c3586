"""Sampling parameters: how the next token is chosen."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from nightshift.common.spec.section import Section


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
