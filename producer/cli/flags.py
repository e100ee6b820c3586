"""Flags that `run`, `estimate` and `submit` have in common: one field, one option."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

WHAT, HOW, WHERE = "What runs", "How it answers", "Where and how much"


def _flag(names: str, text: str, panel: str) -> Any:
    return typer.Option(*names.split(), help=text, rich_help_panel=panel)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The flags of a command line; one that was not given is None or []."""

    model: Annotated[
        str | None, _flag("--model -m", "Hub name or folder of a model, for vLLM.", WHAT)
    ] = None
    base_url: Annotated[
        str | None,
        _flag("--base-url", "Address of a server of the OpenAI API that has the model.", WHAT),
    ] = None
    revision: Annotated[
        str | None, _flag("--revision", "Branch, tag or commit of a hub model.", WHAT)
    ] = None
    engine_arg: Annotated[
        list[str] | None,
        _flag("--engine-arg", "KEY=VALUE for engine.args; the value is JSON or a string.", WHAT),
    ] = None
    callable: Annotated[
        str | None,
        _flag("--callable", "module:name of a Python function, instead of a model.", WHAT),
    ] = None
    prompt: Annotated[
        str | None, _flag("--prompt -p", "Jinja template over the row's columns.", WHAT)
    ] = None
    system: Annotated[
        str | None, _flag("--system", "System message before the prompt, a template too.", WHAT)
    ] = None
    choice: Annotated[
        list[str] | None, _flag("--choice", "The answer is one of these, separated by commas.", HOW)
    ] = None
    schema: Annotated[
        Path | None,
        _flag("--schema", "The answer is JSON of this form: a file with a JSON schema.", HOW),
    ] = None
    regex: Annotated[
        str | None, _flag("--regex", "The answer matches this regular expression.", HOW)
    ] = None
    grammar: Annotated[
        Path | None,
        _flag("--grammar", "The answer follows this EBNF grammar: a file with it.", HOW),
    ] = None
    max_tokens: Annotated[int | None, _flag("--max-tokens", "Longest answer, in tokens.", HOW)] = (
        None
    )
    temperature: Annotated[
        float | None, _flag("--temperature", "0 takes the likeliest token each time.", HOW)
    ] = None
    seed: Annotated[int | None, _flag("--seed", "Seed of sampled answers.", HOW)] = None
    id: Annotated[str | None, _flag("--id", "Column that names a row.", WHERE)] = None
    out: Annotated[str | None, _flag("--out -o", "Output directory.", WHERE)] = None
    name: Annotated[
        str | None, _flag("--name", "Name of the job; else the input's own name.", WHERE)
    ] = None
    format: Annotated[
        Literal["parquet", "jsonl", "openai"] | None,
        _flag(
            "--format",
            "Format of the parts; or openai, where the input is an OpenAI batch file.",
            WHERE,
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        _flag("--columns", "Input columns that are passed through, separated by commas.", WHERE),
    ] = None
    batch_rows: Annotated[int | None, _flag("--batch-rows", "Rows a batch.", WHERE)] = None
    limit: Annotated[int | None, _flag("--limit", "Take only the first rows.", WHERE)] = None
    pool: Annotated[
        str | None, _flag("--pool", "Group of workers that may run the job.", WHERE)
    ] = None
    priority: Annotated[int | None, _flag("--priority", "Higher goes first.", WHERE)] = None
    max_parallel: Annotated[
        int | None, _flag("--max-parallel", "Batches of the job under way at once.", WHERE)
    ] = None

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
    names = [field.name for field in fields(Flags)]

    def with_flags(**given: Any) -> None:
        flags = Flags(**{name: given.pop(name) for name in names})
        command(**given, flags=flags)

    keyword = inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(Flags, include_extras=True)
    own = [
        parameter.replace(kind=keyword)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "flags"
    ]
    options = [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
        for field in fields(Flags)
    ]
    parameters = [*own, *options]
    # Typer makes options of these two.
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    return with_flags
