"""Structured output: what an answer must look like, and what becomes of one that does not."""

import json
from typing import Any, Literal, Self

from pydantic import (
    Field,
    FieldSerializationInfo,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from nightshift.common.spec import patterns
from nightshift.common.spec.json_schema import refuse_unusable
from nightshift.common.spec.section import STORED, Absent, Section


class OnInvalid(Section):
    """What becomes of a row whose answer was cut off or does not fit."""

    retries: int = Field(0, ge=0, le=20, description="Times the row is asked again.")
    temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        description="Temperature of these tries; each has a seed of its own. Absent: the task's, "
        "or 0.7 where that is 0, which would give the same answer again.",
    )


class StructuredOutput(Section):
    """What an answer must look like; one of the four."""

    choice: list[str] | None = Field(None, description="The answer is one of these strings.")
    json_schema: dict[str, Any] | None = Field(None, description="The answer is JSON of this form.")
    regex: str | None = Field(
        None, description="The answer matches this regular expression, whole, as RE2 reads it."
    )
    grammar: str | None = Field(None, description="The answer follows this EBNF grammar.")
    confidence: bool = Field(
        False,
        description="With choice: the column `confidence`, the probability that sampling under the choices at "
        "temperature 1 gives the answer.",
        exclude_if=lambda value: not value,
    )
    hold: Literal["always", "on_retry"] = Field(
        "always",
        description="When the engine holds the answer to this form: always, or on_retry: the first try is free "
        "text, and only a row whose text does not fit is asked again, with its form held.",
        exclude_if=lambda value: value == "always",
    )
    on_invalid: Absent[OnInvalid] = Field(
        None, description="What becomes of a row whose answer does not fit; a row error without it."
    )

    @field_validator("json_schema", mode="before")
    @classmethod
    def _from_ledger(cls, value: object, info: ValidationInfo) -> object:
        return json.loads(value) if info.context == STORED and isinstance(value, str) else value

    @field_serializer("json_schema")
    def _for_ledger(self, value: dict[str, Any] | None, info: FieldSerializationInfo) -> object:
        """The schema as text: Postgres sorts the keys of its JSON, and models write properties in order."""
        return json.dumps(value) if info.context == STORED and value is not None else value

    @field_validator("json_schema")
    @classmethod
    def _is_schema(
        cls, value: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        if value is not None and info.context != STORED:
            refuse_unusable(value)
        return value

    @field_validator("regex")
    @classmethod
    def _is_pattern(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and info.context != STORED:
            try:
                patterns.compiled(value)
            except patterns.UnusablePatternError as error:
                raise ValueError(f"regex cannot be used: {error}") from error
        return value

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        given = (self.choice, self.json_schema, self.regex, self.grammar)
        choice = self.choice
        mistakes = (
            (
                sum(each is not None for each in given) != 1,
                "give exactly one of choice, json_schema, regex, grammar",
            ),
            (
                self.confidence and choice is None,
                "confidence is the probability of a choice: give choice, or leave it out",
            ),
            (self.regex == "", "regex is empty"),
            (self.grammar == "", "grammar is empty"),
            (
                choice is not None and not (choice and all(choice)),
                "choice needs at least one string, and no empty ones",
            ),
            (
                choice is not None and len(set(choice)) < len(choice),
                "choice names the same string twice",
            ),
        )
        for is_made, sentence in mistakes:
            if is_made:
                raise ValueError(sentence)
        return self
