"""Flags that `run`, `estimate` and `submit` have in common: one field, one option, one place."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

# Ruff does not see that each default below is a field of the dataclass:
# ruff: noqa: RUF009

WHAT, HOW, WHERE = "What runs", "How it answers", "Where and how much"


def _flag(place: str | None, text: str, panel: str, *names: str) -> Any:
    """A field that is None without its flag, and carries the option for Typer.

    The `place` is that of the value in a spec. `names` are those of the option, if there is
    another one than that of the field.
    """
    option = typer.Option(*names, help=text, rich_help_panel=panel)
    return field(default=None, metadata={"option": option, "place": place})


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The flags of a command line; one that was not given is None or []."""

    model: str | None = _flag(
        "engine.model", "Hub name or folder of a model, for vLLM.", WHAT, "--model", "-m"
    )
    base_url: str | None = _flag(
        "engine.base_url", "Address of a server of the OpenAI API that has the model.", WHAT
    )
    revision: str | None = _flag("engine.revision", "Branch, tag or commit of a hub model.", WHAT)
    engine_arg: list[str] | None = _flag(
        "engine.args", "KEY=VALUE for engine.args; the value is JSON or a string.", WHAT
    )
    callable: str | None = _flag(
        "engine.callable", "module:name of a Python function, instead of a model.", WHAT
    )
    prompt: str | None = _flag(
        "task.prompt", "Jinja template over the row's columns.", WHAT, "--prompt", "-p"
    )
    system: str | None = _flag(None, "System message before the prompt, a template too.", WHAT)
    choice: list[str] | None = _flag(
        "task.output.choice", "The answer is one of these, separated by commas.", HOW
    )
    schema: Path | None = _flag(
        "task.output.json_schema",
        "The answer is JSON of this form: a file with a JSON schema.",
        HOW,
    )
    regex: str | None = _flag(
        "task.output.regex", "The answer matches this regular expression.", HOW
    )
    grammar: Path | None = _flag(
        "task.output.grammar", "The answer follows this EBNF grammar: a file with it.", HOW
    )
    max_tokens: int | None = _flag("task.sampling.max_tokens", "Longest answer, in tokens.", HOW)
    temperature: float | None = _flag(
        "task.sampling.temperature", "0 takes the likeliest token each time.", HOW
    )
    seed: int | None = _flag("task.sampling.seed", "Seed of sampled answers.", HOW)
    id: str | None = _flag("input.id", "Column that names a row.", WHERE)
    out: str | None = _flag("output.uri", "Output directory.", WHERE, "--out", "-o")
    name: str | None = _flag("name", "Name of the job; else the input's own name.", WHERE)
    format: Literal["parquet", "jsonl", "openai"] | None = _flag(
        None, "Format of the parts; or openai, where the input is an OpenAI batch file.", WHERE
    )
    columns: list[str] | None = _flag(
        "output.columns",
        "Input columns that are passed through, separated by commas.",
        WHERE,
    )
    batch_rows: int | None = _flag("batch.rows", "Rows a batch.", WHERE)
    limit: int | None = _flag("input.limit", "Take only the first rows.", WHERE)
    pool: str | None = _flag("pool", "Group of workers that may run the job.", WHERE)
    priority: int | None = _flag("priority", "Higher goes first.", WHERE)
    max_parallel: int | None = _flag(
        "limits.max_parallel", "Batches of the job under way at once.", WHERE
    )

    def given(self, *names: str) -> list[str]:
        """Those of the named flags that were given, as the user writes them."""
        return [
            f"--{name.replace('_', '-')}" for name in names if getattr(self, name) not in (None, [])
        ]


REQUEST_FLAGS = (
    "prompt",
    "system",
    "choice",
    "schema",
    "regex",
    "grammar",
    "max_tokens",
    "temperature",
    "seed",
)
"""Flags whose values stand in each request of an OpenAI batch file."""

MODEL_FLAGS = ("model", "base_url", "revision", "engine_arg", *REQUEST_FLAGS)


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a typer command one option for each field of Flags; it gets them as `flags`."""
    names = [each.name for each in fields(Flags)]

    def with_flags(**given: Any) -> None:
        flags = Flags(**{name: given.pop(name) for name in names})
        command(**given, flags=flags)

    own = [each for each in inspect.signature(command).parameters.values() if each.name != "flags"]
    options = [
        parameter.replace(annotation=Annotated[parameter.annotation, each.metadata["option"]])
        for parameter, each in zip(
            inspect.signature(Flags).parameters.values(), fields(Flags), strict=True
        )
    ]
    parameters = [*own, *options]
    # Typer makes options of these two.
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    return with_flags
