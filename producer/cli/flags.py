"""Flags that `run`, `estimate` and `submit` have in common: one field, one option, one place."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nightshift.producer.cli import proposals

# Ruff does not see that each default below is a field of the dataclass:
# ruff: noqa: RUF009


def _flag(panel: str, place: str, text: str, *names: str, propose: Any = None) -> Any:
    """A field that is None without its flag, and carries the option for Typer.

    The `place` is that of the value in a spec. `names` are those of the option, if there is
    another one than that of the field; `propose` completes the value in a shell.
    """
    option = typer.Option(*names, help=text, rich_help_panel=panel, autocompletion=propose)
    return field(default=None, metadata={"option": option, "place": place})


_what = partial(_flag, "What runs")
_how = partial(_flag, "How it answers")
_where = partial(_flag, "Where and how much")


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The flags of a command line; one that was not given is None or []."""

    model: str | None = _what(
        "engine.model", "Hub name or folder of a model, for vLLM.", "--model", "-m"
    )
    base_url: str | None = _what(
        "engine.base_url", "Address of a server of the OpenAI API that has the model."
    )
    revision: str | None = _what("engine.revision", "Branch, tag or commit of a hub model.")
    engine_arg: list[str] | None = _what(
        "engine.args", "KEY=VALUE for engine.args; the value is JSON or a string."
    )
    callable: str | None = _what(
        "engine.callable", "module:name of a Python function, instead of a model."
    )
    prompt: str | None = _what(
        "task.prompt", "Jinja template over the row's columns.", "--prompt", "-p"
    )
    system: str | None = _what("task.messages", "System message before the prompt, a template too.")
    choice: list[str] | None = _how(
        "task.output.choice", "The answer is one of these, separated by commas."
    )
    schema: Path | None = _how(
        "task.output.json_schema", "The answer is JSON of this form: a file with a JSON schema."
    )
    regex: str | None = _how("task.output.regex", "The answer matches this regular expression.")
    grammar: Path | None = _how(
        "task.output.grammar", "The answer follows this EBNF grammar: a file with it."
    )
    max_tokens: int | None = _how("task.sampling.max_tokens", "Longest answer, in tokens.")
    temperature: float | None = _how(
        "task.sampling.temperature", "0 takes the likeliest token each time."
    )
    seed: int | None = _how("task.sampling.seed", "Seed of sampled answers.")
    n: int | None = _how(
        "task.sampling.n", "Samples of each row; needs a --temperature above 0.", "--n"
    )
    thinking: Literal["auto", "on", "off"] | None = _how(
        "task.thinking",
        "Whether the model thinks before it answers; auto leaves that to the model.",
    )
    id: str | None = _where("input.id", "Column that names a row.")
    out: str | None = _where("output.uri", "Output directory.", "--out", "-o")
    name: str | None = _where("name", "Name of the job; else the input's own name.")
    format: Literal["parquet", "jsonl", "openai"] | None = _where(
        "output.format", "Format of the parts; or openai, where the input is an OpenAI batch file."
    )
    columns: list[str] | None = _where(
        "output.columns", "Input columns that are passed through, separated by commas."
    )
    batch_rows: int | None = _where("batch.rows", "Rows a batch.")
    where: str | None = _where(
        "input.where", "Take only the rows that match: \"lang = 'de' AND stars >= 3\"."
    )
    limit: int | None = _where("input.limit", "Take only the first rows.")
    watch: str | None = _where(
        "input.watch", "Look for new files again and again, with this pause: 30s, 5m, 1h."
    )
    pool: str | None = _where(
        "pool", "Group of workers that may run the job.", propose=proposals.pools
    )
    priority: int | None = _where("priority", "Higher goes first.")
    max_parallel: int | None = _where(
        "limits.max_parallel", "Batches of the job under way at once."
    )
    finish_by: str | None = _where(
        "limits.finish_by", "When the job should be done: 06:00, a date, or a duration such as 8h."
    )

    def given(self, *names: str) -> list[str]:
        """Those of the named flags that were given, as the user writes them."""
        return [
            f"--{name.replace('_', '-')}" for name in names if getattr(self, name) not in (None, [])
        ]


def _placed(section: str) -> list[str]:
    return [each.name for each in fields(Flags) if each.metadata["place"].startswith(section)]


REQUEST_FLAGS = _placed("task.")
"""Flags whose values stand in each request of an OpenAI batch file."""

MODEL_FLAGS = [name for name in _placed("engine.") if name != "callable"] + REQUEST_FLAGS


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
