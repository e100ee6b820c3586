"""Tasks: what is done with a row, and which columns its answer has."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    Discriminator,
    Field,
    FieldSerializationInfo,
    Tag,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from nightshift.common.spec.json_schema import Scalar, refuse_unusable, scalar_properties
from nightshift.common.spec.section import STORED, Section
from nightshift.common.templates.sandbox import template_columns


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


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def _content_form(value: object) -> str:
    return "parts" if isinstance(value, list) else "template"


class Message(Section):
    """One chat message; `content` is a Jinja template over the row's columns, or a list of parts."""

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: Annotated[
        Annotated[str, Tag("template")] | Annotated[list[Part], Tag("parts")],
        Discriminator(_content_form),
    ] = Field(description="Template over the row's columns, or a list of parts: text and images.")

    @field_validator("content")
    @classmethod
    def _some_part(cls, value: str | list[Part]) -> str | list[Part]:
        if value == []:
            raise ValueError("names no part")
        return value

    @property
    def parts(self) -> Sequence[TextPart | ImagePart]:
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
    regex: str | None = Field(None, description="The answer matches this regular expression.")
    grammar: str | None = Field(None, description="The answer follows this EBNF grammar.")
    on_invalid: OnInvalid | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="What becomes of a row whose answer does not fit; a row error without it.",
    )

    @field_validator("json_schema", mode="before")
    @classmethod
    def _from_ledger(cls, value: object, info: ValidationInfo) -> object:
        return json.loads(value) if info.context == STORED and isinstance(value, str) else value

    @field_serializer("json_schema")
    def _for_ledger(self, value: dict[str, Any] | None, info: FieldSerializationInfo) -> object:
        """As text: Postgres sorts the keys of its JSON, and models write properties in order."""
        return json.dumps(value) if info.context == STORED and value is not None else value

    @field_validator("json_schema")
    @classmethod
    def _is_schema(
        cls, value: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        if value is not None and info.context != STORED:
            refuse_unusable(value)
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        forms = type(self).model_fields.keys() - {"on_invalid"}
        given = [name for name in forms if getattr(self, name) is not None]
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


class TaskSection(Section):
    """What every task says of itself beside its fields."""

    has_open_columns: ClassVar[bool] = False
    """Whether the first answers decide what the columns of the output are."""

    kind: str

    @property
    def answers(self) -> tuple[str, ...]:
        """Columns of the output that are the task's own, which no column of the input can have."""
        return ()

    @property
    def runner(self) -> str:
        """What an engine is loaded for; engines of another runner are other engines."""
        return str(self.kind)

    @property
    def templates(self) -> list[str]:
        """Every template of the task, in order."""
        return []

    @property
    def columns(self) -> frozenset[str]:
        """Input columns that the task names."""
        return frozenset().union(*(template_columns(template) for template in self.templates))


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
        return _compiled(self)

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


class EmbedTask(TaskSection):
    """Text in, a vector out, by an embedding model."""

    has_open_columns = True

    kind: Literal["embed"] = Field(description="Text in, a vector out, by an embedding model.")
    text: str = Field(description="Template of the text.")
    dimensions: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="Keep the first so many, for models trained for it (Matryoshka), before they "
        "are normalised. All when absent.",
    )
    normalize: bool | None = Field(
        None, description="Scale to length 1, or not; as the model's own files say when absent."
    )
    dtype: Literal["float32", "float16"] = Field(
        "float32", description="Type of the vectors' numbers in the output."
    )

    @model_validator(mode="after")
    def _templates_compile(self) -> Self:
        return _compiled(self)

    @property
    def answers(self) -> tuple[str, ...]:
        """The vector."""
        return ("embedding",)

    @property
    def templates(self) -> list[str]:
        """The text's."""
        return [self.text]


class ClassifyTask(TaskSection):
    """Text in, a label with its probability out, by a sequence classifier."""

    has_open_columns = True

    kind: Literal["classify"] = Field(
        description="Text in, a label with its probability out, by a sequence classifier."
    )
    text: str = Field(description="Template of the text.")
    text_pair: str | None = Field(
        None, description="Template of the second text, for models that judge pairs."
    )

    @model_validator(mode="after")
    def _templates_compile(self) -> Self:
        return _compiled(self)

    @property
    def answers(self) -> tuple[str, ...]:
        """The best label, its probability, and those of all labels."""
        return ("label", "probability", "probabilities")

    @property
    def templates(self) -> list[str]:
        """The text's and, where there is one, the second text's."""
        return [self.text] if self.text_pair is None else [self.text, self.text_pair]


class ScoreTask(TaskSection):
    """Two texts in, one number out: a cross-encoder's, or the cosine of two embeddings."""

    kind: Literal["score"] = Field(
        description="Two texts in, one number out: a cross-encoder's, or the cosine of two "
        "embeddings."
    )
    text: str = Field(description="Template of the text, such as the query.")
    text_pair: str = Field(description="Template of the second text, such as the document.")

    @model_validator(mode="after")
    def _templates_compile(self) -> Self:
        return _compiled(self)

    @property
    def answers(self) -> tuple[str, ...]:
        """The number."""
        return ("score",)

    @property
    def templates(self) -> list[str]:
        """The two texts'."""
        return [self.text, self.text_pair]


REQUEST_COLUMNS = ("custom_id", "method", "url", "body")
"""Columns of a line of an OpenAI batch file; `body` is JSON text."""

REQUEST_ID = REQUEST_COLUMNS[0]
"""The one that names a request."""

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


class RequestsTask(TaskSection):
    """Rows that are requests of the OpenAI batch format: each says its own messages and sampling."""

    kind: Literal["requests"] = Field(
        description="Rows that are requests of the OpenAI batch format: each says its own messages "
        "and sampling."
    )
    endpoint: Endpoint = Field(
        "/v1/chat/completions",
        description="What every request asks for; its `url`. That of the first line when absent.",
    )

    @property
    def answers(self) -> tuple[str, ...]:
        """What the API would have answered."""
        return ("status_code", "request_id", "response")

    @property
    def runner(self) -> str:
        """That of the task which the endpoint stands for: both share an engine."""
        return "embed" if self.endpoint == "/v1/embeddings" else "generate"

    @property
    def columns(self) -> frozenset[str]:
        """The columns of a batch file."""
        return frozenset(REQUEST_COLUMNS)


class FunctionTask(TaskSection):
    """Rows in, columns out, by a Python function."""

    has_open_columns = True

    kind: Literal["function"] = Field(description="Rows in, columns out, by a Python function.")


Task = Annotated[
    GenerateTask | EmbedTask | ClassifyTask | ScoreTask | RequestsTask | FunctionTask,
    Field(discriminator="kind"),
]

T = TypeVar("T", bound=TaskSection)


def _compiled(task: T) -> T:
    for template in task.templates:
        template_columns(template)
    return task
