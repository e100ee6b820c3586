"""Task generate: text in, text out, by a language model."""

from typing import Literal, Self

from pydantic import Field, model_validator

from nightshift.common.spec.json_schema import Scalar, scalar_properties
from nightshift.common.spec.tasks.messages import ImagePart, Message
from nightshift.common.spec.tasks.sampling import Sampling
from nightshift.common.spec.tasks.section import TaskSection
from nightshift.common.spec.tasks.structured import StructuredOutput

PARSED = "parsed"
"""Column of typed answers, beside their text."""


class GenerateTask(TaskSection):
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
        return self

    @property
    def answers(self) -> tuple[str, ...]:
        """The text and, beside JSON of scalar properties, its typed form."""
        return ("output",) if self.parsed is None else ("output", PARSED)

    @property
    def parsed(self) -> dict[str, Scalar] | None:
        """The fields of the column `parsed`; None where there is none."""
        schema = self.output.json_schema if self.output else None
        return None if schema is None else scalar_properties(schema)

    @property
    def templates(self) -> list[str]:
        """Every template of the task, in order."""
        if self.messages is not None:
            return [template for message in self.messages for template in message.templates]
        return [self.prompt or ""]

    @property
    def image_columns(self) -> frozenset[str]:
        """Input columns that hold images."""
        parts = (part for message in self.messages or () for part in message.parts)
        return frozenset(part.column for part in parts if isinstance(part, ImagePart))

    @property
    def columns(self) -> frozenset[str]:
        """Input columns that the templates, the images and the sampling name."""
        own = self.sampling.max_tokens_column
        return super().columns | self.image_columns | frozenset([own] if own else ())
