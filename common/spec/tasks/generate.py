"""Task generate: text in, text out, by a language model; its messages and its sampling."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from nightshift.common.spec.json_schema import Scalar, scalar_properties
from nightshift.common.spec.section import Absent, Section
from nightshift.common.spec.tasks import template_arguments
from nightshift.common.spec.tasks.sampling import Sampling, SamplingColumns
from nightshift.common.spec.tasks.section import TaskSection
from nightshift.common.spec.tasks.structured import StructuredOutput

PARSED = "parsed"
"""Column of typed answers, beside their text."""

OUTPUTS = "outputs"
"""Column of the samples of a row, a list, where a row has more than one."""

VOTE_SHARE = "vote_share"
"""Column of the share of the samples that gave the answer in `output`."""

CHOICE = "choice"
"""What `vote` names where the whole answer is voted on."""


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
    messages_column: Absent[str] = Field(
        None,
        min_length=1,
        description="Column that holds a row's whole chat, in place of messages: a list of structs with "
        "role and content, or the same as JSON; roles system, developer, user, assistant and tool, with "
        "tool_calls, as OpenAI's API has them.",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Variables of the model's chat template, such as reasoning_effort: constants, which keep "
        "their JSON types, or {column: NAME} for the value of each row.",
        exclude_if=lambda value: not value,
    )
    thinking: Absent[Literal["auto", "on", "off"]] = Field(
        None,
        description="Whether the model thinks before it answers: on and off turn the switch of its chat "
        "template, auto leaves the switch as the model has it. Absent: auto for free text; with output the "
        "answer begins at once.",
    )
    thinking_budget: Absent[int] = Field(
        None,
        ge=0,
        description="Most tokens of a thought, after which the engine ends the thought. For models whose "
        "chat template opens the thought. Without effect beside thinking: off.",
    )
    keep_reasoning: bool = Field(
        False,
        description="Keep the thoughts in the column `reasoning`, and their number of tokens in "
        "`reasoning_tokens`. Without it they are counted and dropped. With thinking: off the columns are "
        "empty unless the model thinks anyway.",
        exclude_if=lambda value: not value,
    )
    sampling_columns: SamplingColumns = Field(
        SamplingColumns.model_validate({}),
        description="Columns that hold a row's own sampling.",
        exclude_if=lambda value: not value.named,
    )
    vote: Absent[str] = Field(
        None,
        min_length=1,
        description="With sampling.n above 1: `choice`, or a field of the JSON answer, on which the samples "
        "vote. `output` is the first sample with the majority's answer, `vote_share` its share of all "
        "samples; ties go to the first.",
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
        given = [self.messages, self.prompt, self.messages_column]
        if sum(each is not None for each in given) != 1:
            raise ValueError("give either messages or prompt, or messages_column")
        if self.messages is not None and not self.messages:
            raise ValueError("messages is empty")
        return self

    @field_validator("thinking", mode="before")
    @classmethod
    def _word_of_yaml(cls, value: object) -> object:
        """YAML reads the bare words on and off as true and false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _thinking_fits(self) -> Self:
        by_word = self.thinking in ("on", "off")
        template_arguments.check(self.chat_template_kwargs, thinks_by_word=by_word)
        if self.thinking_budget is not None and self.output is not None and self.thinking is None:
            raise ValueError(
                "with output the answer begins at once: say thinking: on beside thinking_budget"
            )
        return self

    @model_validator(mode="after")
    def _samples_fit(self) -> Self:
        own = self.sampling_columns.named
        if self.sampling.max_tokens_column is not None and "max_tokens" in own:
            raise ValueError(
                "sampling.max_tokens_column and sampling_columns.max_tokens say the same: give one of them"
            )
        if self.sampling.n > 1 and self.sampling.temperature == 0 and "temperature" not in own:
            raise ValueError(
                "sampling.n above 1 needs a temperature above 0: greedy samples are all equal"
            )
        again = self.output and self.output.on_invalid
        if self.sampling.n > 1 and again and again.temperature == 0:
            raise ValueError(
                "output.on_invalid.temperature 0 would draw equal samples again: leave it out, or say one above 0"
            )
        if self.sampling.n > 1 and self.dedupe:
            raise ValueError("rows with sampling.n above 1 share nothing: leave dedupe out")
        if self.vote is not None:
            self._check_vote(self.vote)
        return self

    def _check_vote(self, vote: str) -> None:
        if self.sampling.n == 1:
            raise ValueError("vote needs sampling.n above 1")
        if vote == CHOICE and self.output is not None and self.output.choice is not None:
            return
        fields = self.parsed or {}
        if vote not in fields:
            known = ", ".join(fields) or "none here"
            raise ValueError(
                f"vote is choice, with output.choice, or a field of output.json_schema ({known}); "
                f"{vote!r} is neither"
            )

    @property
    def shares(self) -> bool:
        """At temperature 0, or where the spec says so; rows with several samples share nothing."""
        if self.sampling.n > 1:
            return False
        return self.sampling.temperature == 0 if self.dedupe is None else self.dedupe

    @property
    def samples(self) -> int:
        """The samples of a row, as the sampling says."""
        return self.sampling.n

    @property
    def may_think(self) -> bool:
        """Whether a model that thinks does so before its answer."""
        return self.thinking != "off" and (self.output is None or self.thinking is not None)

    @property
    def most_thinking_tokens(self) -> int | None:
        """The `thinking_budget` of a model that may think; None without a bound."""
        return None if self.thinking == "off" else self.thinking_budget

    @property
    def answers(self) -> tuple[str, ...]:
        """The text and, beside JSON of scalar properties, its typed form; what else the spec asks for."""
        sampling, several = self.sampling, self.sampling.n > 1
        has = {
            OUTPUTS: several,
            "output": not several or self.vote is not None,
            PARSED: self.parsed is not None and (not several or self.vote is not None),
            VOTE_SHARE: self.vote is not None,
            "reasoning": self.keep_reasoning and not several,
            "reasoning_tokens": self.keep_reasoning,
            "confidence": self.has_confidence and not several,
            "logprobs": sampling.logprobs is not None and not several,
            "prompt_logprobs": sampling.prompt_logprobs is not None,
        }
        return tuple(name for name, is_there in has.items() if is_there)

    @property
    def has_confidence(self) -> bool:
        """Whether the probability of each chosen label is wanted."""
        return self.output is not None and self.output.confidence

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
        return [] if self.prompt is None else [self.prompt]

    @property
    def image_columns(self) -> frozenset[str]:
        """Input columns that hold images."""
        parts = (part for message in self.messages or () for part in message.parts)
        return frozenset(part.column for part in parts if isinstance(part, ImagePart))

    @property
    def columns(self) -> frozenset[str]:
        """Input columns that the templates, the chat, the images and the sampling name."""
        own = (self.sampling.max_tokens_column, self.messages_column)
        return (
            super().columns
            | self.image_columns
            | template_arguments.columns(self.chat_template_kwargs)
            | frozenset(self.sampling_columns.named.values())
            | frozenset(name for name in own if name)
        )
