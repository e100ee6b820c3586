"""Flags of `nightshift run` and `submit`, and how they become a job spec or are laid over one."""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from nightshift.common.errors import BadInput

if TYPE_CHECKING:
    from nightshift.common.spec import JobSpec

WHAT, HOW, WHERE = "What runs", "How it answers", "Where and how much"


def _flag(names: str, said: str, panel: str, **more: Any) -> Any:
    return typer.Option(*names.split(), help=said, rich_help_panel=panel, **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """What was said on the command line; None and [] were not said."""

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

    def said(self, *names: str) -> list[str]:
        """Those of the flags that were given, as the user writes them."""
        return [f"--{name.replace('_', '-')}" for name in names if self._is_said(name)]

    def _is_said(self, name: str) -> bool:
        return getattr(self, name) not in (None, [])


REQUEST_SAYS = (
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
"""What a request of an OpenAI batch file says itself."""

MODEL_FLAGS = ("model", "base_url", "revision", "engine_arg", *REQUEST_SAYS)


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a typer command one option for each field of Flags; it gets them as `flags`."""
    names = [field.name for field in fields(Flags)]

    def with_flags(**given: Any) -> None:
        flags = Flags(**{name: given.pop(name) for name in names})
        command(**given, flags=flags)

    own = [
        parameter
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "flags"
    ]
    hints = get_type_hints(Flags, include_extras=True)
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(Flags)
    ]
    every = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *options]
    with_flags.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {one.name: one.annotation for one in every}
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    return with_flags


def job_spec(target: str, flags: Flags) -> "JobSpec":
    """The spec of `run TARGET` and `submit TARGET`.

    A TARGET that ends in .yaml or .yml is a spec, and flags are laid over it; anything else is an
    input, and flags say the rest. BadInput names what is missing, doubled or impossible.
    """
    from nightshift.common.spec import load_spec, parse_spec

    _refuse_conflicts(flags)
    if target.lower().endswith((".yaml", ".yml")):
        spec = load_spec(Path(target))
        if not flags.said(*(field.name for field in fields(Flags))):
            return spec
        written = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        _refuse_other_engine(target, written, flags)
        above = _sections(flags)
        if "engine" in above:
            above["engine"]["backend"] = written["engine"]["backend"]
        return parse_spec(_laid_over(written, above), f"{target} with flags")
    _refuse_missing(flags)
    given = _sections(flags)
    given.setdefault("name", job_name(target))
    given.setdefault("output", {}).setdefault("uri", f"{given['name']}-out")
    given["input"] = {"uri": target, **given.get("input", {})}
    return parse_spec(given, "flags")


def job_name(target: str) -> str:
    """A job's name made of its input: the last part of the path that is no glob, without suffix."""
    plain = [part for part in PurePosixPath(target).parts if not re.search(r"[*?\[\]{}]", part)]
    stem = PurePosixPath(plain[-1]).stem if plain else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-_")[:63]
    return f"job-{name}"[:63].rstrip("-") if not name or name.isdigit() else name


def _refuse_conflicts(flags: Flags) -> None:
    if flags.callable is not None and (others := flags.said(*MODEL_FLAGS)):
        raise BadInput(
            f"--callable runs a Python function and {others[0]} is for models: give one of them"
        )
    if flags.format == "openai" and (others := flags.said("callable", *REQUEST_SAYS, "id")):
        raise BadInput(
            f"{others[0]} does not go with --format openai: each request of the file says its own"
        )
    if len(forms := flags.said("choice", "schema", "regex", "grammar")) > 1:
        raise BadInput(f"{forms[0]} and {forms[1]} both say what an answer looks like: give one")
    if flags.base_url is not None and flags.revision is not None:
        raise BadInput("--revision is for models that are loaded here, not for --base-url")
    if flags.system is not None and flags.prompt is None:
        raise BadInput("--system goes before a --prompt, which is missing")


def _refuse_missing(flags: Flags) -> None:
    if flags.model is None and flags.callable is None:
        raise BadInput(
            "nothing says what to run: give --model M with --prompt, --callable module:name, "
            "or a spec that ends in .yaml"
        )
    if flags.format == "openai":
        return
    if flags.model is not None and flags.prompt is None:
        raise BadInput("--model needs a --prompt, such as --prompt 'Sentiment of: {{ text }}'")
    if flags.out is None:
        raise BadInput("--out is missing: name the output directory")


def _refuse_other_engine(target: str, written: dict[str, Any], flags: Flags) -> None:
    backend = written["engine"]["backend"]
    wrong = flags.said("callable") if backend != "function" else flags.said(*MODEL_FLAGS)
    wrong += flags.said("base_url") if backend != "openai" else flags.said("revision")
    if wrong:
        raise BadInput(f"{wrong[0]} does not fit {target}, whose engine.backend is {backend}")


def _sections(flags: Flags) -> dict[str, Any]:
    """The mapping that a spec with just these flags would be; what was not said is left out."""
    return _pruned(
        {
            "name": flags.name,
            "pool": flags.pool,
            "priority": flags.priority,
            "input": {
                "format": "openai" if flags.format == "openai" else None,
                "id": flags.id,
                "limit": flags.limit,
            },
            "task": _task(flags),
            "engine": _engine(flags),
            "output": {
                "uri": flags.out,
                "format": None if flags.format == "openai" else flags.format,
                "columns": _words(flags.columns),
            },
            "batch": {"rows": flags.batch_rows},
            "limits": {"max_parallel": flags.max_parallel},
        }
    )


def _task(flags: Flags) -> dict[str, Any]:
    if flags.callable is not None:
        return {"kind": "function"}
    if flags.format == "openai":
        return {"kind": "requests"}
    task: dict[str, Any] = {
        "sampling": {
            "max_tokens": flags.max_tokens,
            "temperature": flags.temperature,
            "seed": flags.seed,
        },
        "output": {
            "choice": _words(flags.choice),
            "regex": flags.regex,
            "json_schema": _json_file(flags.schema),
            "grammar": _grammar_file(flags.grammar),
        },
    }
    if flags.prompt is not None and flags.system is not None:
        task["messages"] = [
            {"role": "system", "content": flags.system},
            {"role": "user", "content": flags.prompt},
        ]
    else:
        task["prompt"] = flags.prompt
    return {**task, "kind": "generate"} if _pruned(task) else {}


def _engine(flags: Flags) -> dict[str, Any]:
    if flags.callable is not None:
        return {"backend": "function", "callable": flags.callable}
    engine = {
        "model": flags.model,
        "base_url": flags.base_url,
        "revision": flags.revision,
        "args": dict(_engine_arg(text) for text in flags.engine_arg or []),
    }
    backend = "vllm" if flags.base_url is None else "openai"
    return {**engine, "backend": backend} if _pruned(engine) else {}


def _engine_arg(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadInput(f"--engine-arg {text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _json_file(path: Path | None) -> Any:
    if path is None:
        return None
    from nightshift.common.spec.file import read_text

    text = read_text(path, "JSON schema")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"--schema {path}: no valid JSON ({error})") from error


def _grammar_file(path: Path | None) -> str | None:
    if path is None:
        return None
    from nightshift.common.spec.file import read_text

    return read_text(path, "grammar")


def _words(given: list[str] | None) -> list[str] | None:
    if not given:
        return None
    return [word.strip() for text in given for word in text.split(",")]


def _pruned(value: dict[str, Any]) -> dict[str, Any]:
    """Without what was not said. An empty JSON schema is something; an empty section is not."""
    kept = {
        key: _pruned(entry)
        if isinstance(entry, dict) and key not in ("json_schema", "args")
        else entry
        for key, entry in value.items()
    }
    return {
        key: entry
        for key, entry in kept.items()
        if entry is not None and (entry != {} or key == "json_schema")
    }


# Keys that stand for each other: a flag that says one of them silences the rest of the spec's.
ALTERNATIVES = (("messages", "prompt"), ("choice", "json_schema", "regex", "grammar"))


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for group in ALTERNATIVES:
        if any(key in above for key in group):
            merged = {key: value for key, value in merged.items() if key not in group}
    for key, value in above.items():
        held = merged.get(key)
        if isinstance(held, dict) and isinstance(value, dict) and key != "json_schema":
            value = _laid_over(held, value)
        merged[key] = value
    return merged
