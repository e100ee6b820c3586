"""Arguments of a model's chat template: constants of the job, and values of a row's columns."""

from collections.abc import Iterator, Mapping
from typing import Any

OWN_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "load_audio_from_video",
        "max_length",
        "messages",
        "padding",
        "processor_kwargs",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of the call that renders a template, which say how it renders and not what: transformers'
`apply_chat_template`."""

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which the templates of this year turn thinking on and off: the first in those of Qwen, GLM,
Nemotron, Gemma and others, the second in those of DeepSeek, Granite and Kimi."""

COLUMN = "column"


def check(arguments: Mapping[str, Any], *, thinks_by_word: bool) -> None:
    """ValueError for an argument that a job must not set. `thinks_by_word` says that the spec turns
    thinking on or off by task.thinking.
    """
    for name, value in arguments.items():
        if name in OWN_ARGUMENTS:
            raise ValueError(
                f"chat_template_kwargs.{name} is an argument of the call itself, not of the template: "
                "leave it out"
            )
        if not name.isidentifier():
            raise ValueError(f"chat_template_kwargs.{name} is no name of a template's variable")
        if thinks_by_word and name in THINKING_SWITCHES:
            raise ValueError(
                f"thinking and chat_template_kwargs.{name} say the same: give one of them"
            )
        if any(_names_column(each) for each in _within(value) if each is not value) or (
            _names_column(value) and not column_of(value)
        ):
            raise ValueError(
                f"chat_template_kwargs.{name}: the value of a row is {{column: NAME}}, with nothing around or beside it"
            )


def _within(value: object) -> Iterator[object]:
    """The value and all that is nested in it."""
    yield value
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    for each in inner:
        yield from _within(each)


def _names_column(value: object) -> bool:
    return isinstance(value, Mapping) and COLUMN in value


def column_of(value: object) -> str | None:
    """The column whose value a row's argument has; None for a constant."""
    if isinstance(value, Mapping) and value.keys() == {COLUMN} and isinstance(value[COLUMN], str):
        return str(value[COLUMN])
    return None


def columns(arguments: Mapping[str, Any]) -> frozenset[str]:
    """The columns that the arguments name."""
    return frozenset(name for value in arguments.values() if (name := column_of(value)) is not None)


def of_row(arguments: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the values of one row, in the types of the row; a null gives none."""
    return {
        name: given
        for name, value in arguments.items()
        if (given := value if (column := column_of(value)) is None else row[column]) is not None
        or column is None
    }
