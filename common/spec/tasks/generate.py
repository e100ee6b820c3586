"""Task generate: text in, text out, by a language model; its messages and its sampling."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from nightshift.common.spec.json_schema import Scalar, scalar_properties
from nightshift.common.spec.sections import Absent, Section
from nightshift.common.spec.tasks.section import TaskSection
from nightshift.common.spec.tasks.structured import StructuredOutput

PARSED = "parsed"
"""Column of typed answers, beside their text."""


class TextPart(Section):
    """Text among the images of a message."""

    type: Literal["text"] = Field(description="A part of the text.")
    text: str = Field(description="Template over the row's columns.")


class ImagePart(Section):
    """An image of a message."""

    type: Literal["image"] = Field(description="An image, for models that take them.")
    column: str = Field(
        min_length=1,
        description="Column that holds it: the bytes of an image file, or a URI as text.",
    )


ContentPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def _kind_of_content(value: object) -> str:
    return "parts" if isinstance(value, list) else "template"


class Message(Section):
    """One chat message; `content` is a Jinja template over the row's columns, or a list of parts."""

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: Annotated[
        Annotated[str, Tag("template")] | Annotated[list[ContentPart], Tag("parts")],
        Discriminator(_kind_of_content),
    ] = Field(description="Template over the row's columns, or a list of parts: text and images.")

    @field_validator("content")
    @classmethod
    def _some_part(cls, value: str | list[ContentPart]) -> str | list[ContentPart]:
        if value == []:
            raise ValueError("names no part")
        return value

    @property
    def parts(self) -> Sequence[ContentPart]:
        """The content as parts, whichever way it was written."""
        if isinstance(self.content, str):
            return [TextPart(type="text", text=self.content)]
        return self.content

    @property
    def templates(self) -> list[str]:
        """The templates of its text, in order."""
        return [part.text for part in self.parts if isinstance(part, TextPart)]


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
    max_tokens_column: Absent[str] = Field(
        None,
        min_length=1,
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
        Sampling.model_validate({}),
        description="How the next token is chosen.",
    )
    output: StructuredOutput | None = Field(
        None, description="What an answer must look like; free text without it."
    )
    image_roots: list[str] = Field(
        [],
        description="Folders and prefixes of URIs that images named by a URI must lie in; without any, "
        "those of the worker alone.",
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        if self.messages is not None and not self.messages:
            raise ValueError("messages is empty")
        return self

    @property
    def shares(self) -> bool:
        """At temperature 0, or where the spec says so."""
        return self.sampling.temperature == 0 if self.dedupe is None else self.dedupe

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
