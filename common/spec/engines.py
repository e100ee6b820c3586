"""Engines: what runs the task, and which arguments a loaded engine has."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from nightshift.common.spec.section import STORED, Absent, Section

PRICES = frozenset(
    {"price_per_hour", "price_per_million_prompt_tokens", "price_per_million_output_tokens"}
)
"""Prices of an engine; they change neither the engine key nor the identity of a job."""

TEMPLATE_ARGUMENTS = "default_chat_template_kwargs"
"""The argument of vLLM's server that stands for variables of the chat template."""

SERVER_ARGUMENTS = frozenset(
    {
        "chat_template",
        "chat_template_content_format",
        TEMPLATE_ARGUMENTS,
        "enable_auto_tool_choice",
        "enable_prompt_tokens_details",
        "exclude_tools_when_tool_choice_none",
        "response_role",
        "return_tokens_as_token_ids",
        "tool_call_parser",
    }
)
"""Arguments of vLLM's OpenAI server, which its engine does not know: for task.kind requests."""

MEDIA_ARGUMENTS = ("allowed_local_media_path", "allowed_media_domains")
"""Arguments that would let vLLM read files and addresses that rows name."""

ADDRESS = r"^https?://[^\s@?#\\]+$"
"""An address without a password, a query and a fragment."""

CALLABLE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""module:name"""


class EngineSection(Section):
    """What every engine has: its prices and the tasks that it runs."""

    tasks: ClassVar[frozenset[str]] = frozenset()
    """Kinds of task that the engine runs."""

    price_per_hour: Absent[float] = Field(
        None,
        ge=0,
        description="Money for an hour of one engine (one worker slot), in any one currency.",
    )
    price_per_million_prompt_tokens: Absent[float] = Field(
        None, ge=0, description="Money for a million prompt tokens."
    )
    price_per_million_output_tokens: Absent[float] = Field(
        None, ge=0, description="Money for a million output tokens."
    )

    @property
    def has_price(self) -> bool:
        """True where the spec has a price."""
        return any(getattr(self, name) is not None for name in PRICES)


def _or_auto(schema: dict[str, Any]) -> None:
    """The JSON schema of a field that may also be the word auto."""
    form = {key: schema.pop(key) for key in ("type", "additionalProperties") if key in schema}
    schema["anyOf"] = [form, {"const": "auto", "type": "string"}]


class VllmEngineSpec(EngineSection):
    """A model in vLLM, loaded once a worker."""

    tasks = frozenset({"generate", "embed", "classify", "score", "requests"})

    backend: Literal["vllm"] = Field(description="A model in vLLM, loaded once a worker.")
    model: str = Field(min_length=1, description="Hub name or local folder.")
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Passed to vLLM's AsyncEngineArgs as they are; those of its OpenAI server, such "
        "as tool_call_parser and chat_template, are for task.kind requests only. The word auto stands "
        "for what `nightshift tune` kept for the model and the hardware.",
        json_schema_extra=_or_auto,
    )
    args_auto: bool = Field(
        False,
        description="Set by args: auto, whose arguments are filled in at submit.",
        # Workers of a release before this field read the specs of most jobs.
        exclude_if=lambda value: not value,
    )
    args_from: Absent[str] = Field(
        None,
        description="Set at submit: where the arguments come from that auto stands for.",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_auto(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("args") == "auto":
            if data.get("args_auto", True) is not True:
                raise ValueError("args_auto is set by args: auto: leave it out")
            return {**data, "args": {}, "args_auto": True}
        return data

    @model_validator(mode="after")
    def _auto_stands_alone(self, info: ValidationInfo) -> Self:
        if self.args_auto and self.args and info.context != STORED:
            raise ValueError("args: auto stands alone: name arguments, or say auto")
        if self.args_from is not None and info.context != STORED:
            raise ValueError("args_from is set at submit: leave it out")
        return self

    @field_validator("args")
    @classmethod
    def _fit_args(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in ("model", "revision"):
            if key in value:
                raise ValueError(f"say {key} beside args, not inside it")
        for key in MEDIA_ARGUMENTS:
            if key in value:
                raise ValueError(
                    f"{key} has no use: vLLM fetches nothing that a row names, media are data: URLs"
                )
        return value


class TransformersEngineSpec(EngineSection):
    """A model in PyTorch by transformers, loaded once a worker: CPU workers, small models."""

    tasks = frozenset({"embed", "classify", "score"})

    backend: Literal["transformers"] = Field(
        description="A model in PyTorch by transformers, loaded once a worker."
    )
    model: str = Field(
        min_length=1,
        description="Hub name or local folder; the sentence-transformers layout is honoured.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    device: str | None = Field(
        None, description="PyTorch device, such as cpu or cuda; the GPU where there is one."
    )
    dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="Type of the weights."
    )
    batch_size: int = Field(
        32,
        ge=1,
        le=4096,
        description="Size of the first forward passes: 32 tokens for each of so many texts, padding "
        "included. A pass doubles while that makes it faster, and is halved where memory or time is too "
        "short. Without a GPU passes of several texts stay within 16,384 tokens, or within the first.",
    )
    max_length: int | None = Field(
        None, ge=1, description="Longest text, in tokens; the model's own when absent."
    )
    truncate: bool = Field(
        False, description="Cut longer texts, where they are otherwise an error of their row."
    )


class OpenaiEngineSpec(EngineSection):
    """A remote server that speaks the OpenAI API."""

    tasks = frozenset({"generate", "embed", "requests"})

    backend: Literal["openai"] = Field(description="A remote server that speaks the OpenAI API.")
    model: str = Field(min_length=1, description="Model name, as the server knows it.")
    base_url: str = Field(
        "https://api.openai.com/v1",
        pattern=ADDRESS,
        description="Address of the API. The key is the worker's own, bound to this address.",
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda value: not value,
        description="Laid over every request that a task makes; null leaves a field out.",
    )
    concurrency: int = Field(
        64, ge=1, le=10_000, description="Most requests under way at once, in each worker slot."
    )
    requests_per_minute: int | None = Field(
        None, ge=1, description="Most requests a minute, for all workers together."
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="Most prompt and output tokens a minute, for all workers together."
    )


class FunctionEngineSpec(EngineSection):
    """A Python callable: a list of row dicts in, a list of dicts of the same length out."""

    tasks = frozenset({"function"})

    backend: Literal["function"] = Field(description="A Python callable.")
    callable: str = Field(
        pattern=CALLABLE,
        description="`module:name` of a function, or of a class that is made once a process and "
        "called for each batch.",
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        exclude_if=lambda value: not value,
        description="Keyword arguments of the class's `__init__`.",
    )
    call_timeout_seconds: Absent[float] = Field(
        None,
        gt=0,
        description="Longest time of one call, seconds. A call never has more than "
        "retry.row_timeout_seconds for each of its rows.",
    )

    @property
    def module(self) -> str:
        """The module part of the callable."""
        return self.callable.partition(":")[0]


EngineSpec = Annotated[
    VllmEngineSpec | TransformersEngineSpec | OpenaiEngineSpec | FunctionEngineSpec,
    Field(discriminator="backend"),
]
