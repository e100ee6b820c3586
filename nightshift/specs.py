"""The job spec of a call in Python: a whole spec, or an input with keyword arguments."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_type_hints

from pydantic import BaseModel

from nightshift import staging
from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.spec import (
    FunctionEngineSpec,
    JobSpec,
    Message,
    OpenaiEngineSpec,
    Sampling,
    StructuredOutput,
    Task,
    TransformersEngineSpec,
    VllmEngineSpec,
    load_spec,
    parse_spec,
)
from nightshift.common.spec.section import Section
from nightshift.common.spec.sections import BatchSpec, LimitsSpec, OutputSpec, RetrySpec
from nightshift.inputs import uris_of
from nightshift.producer.submit.names import job_name

Engine = VllmEngineSpec | TransformersEngineSpec | OpenaiEngineSpec | FunctionEngineSpec

Answer = type[BaseModel] | Sequence[str] | Mapping[str, Any] | StructuredOutput

SPEC_SUFFIXES = (".yaml", ".yml")

Call = TypeVar("Call", bound=Callable[..., Any])


class JobOptions(TypedDict, total=False):
    """What a job does, where its input does not say it. Each section is one of the typed models, or a
    mapping of the same fields.

    - `model`: hub name or folder of a model, for vLLM; `engine` names any other engine.
    - `prompt`, `system`: templates over the columns of a row; `messages` is a whole chat.
    - `output`: what an answer looks like: a pydantic model, a list of choices, a JSON schema, or a
      `StructuredOutput`. `sampling` says how tokens are chosen.
    - `function`: a Python function instead of a model, as `"module:name"` or as the function itself,
      which must stand in a module that workers can import.
    - `task`, `engine`: whole sections, for everything else.
    - `id`: column that names a row. `columns`: columns that are passed through. `limit`: only the first
      rows.
    - `out`: output directory, or an `OutputSpec`. `name`: name of the job.
    - `pool`, `priority`, `weight`, `batch`, `retry`, `limits`: as in the spec.
    """

    model: str
    prompt: str
    system: str
    messages: Sequence[Message | Mapping[str, Any]]
    output: Answer
    sampling: Sampling | Mapping[str, Any]
    function: str | Callable[..., Any]
    task: Task | Mapping[str, Any]
    engine: Engine | Mapping[str, Any]
    id: str
    columns: Sequence[str]
    where: str
    limit: int
    out: str | Path | OutputSpec | Mapping[str, Any]
    name: str
    pool: str
    priority: int
    weight: float
    batch: BatchSpec | Mapping[str, Any]
    retry: RetrySpec | Mapping[str, Any]
    limits: LimitsSpec | Mapping[str, Any]


def spelled_out(call: Call) -> Call:
    """Shows each of the JobOptions that a function takes in its signature, for `help` and editors."""
    signature = inspect.signature(call)
    *own, rest = signature.parameters.values()
    assert rest.kind is rest.VAR_KEYWORD
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(JobOptions).items()
    ]
    shown = signature.replace(parameters=[*own, *options])
    call.__signature__ = shown  # type: ignore[attr-defined]
    return call


def is_whole(data: object) -> bool:
    """Whether `data` is a whole spec: a JobSpec, a mapping of its sections, or a spec file."""
    if isinstance(data, str | Path):
        return str(data).lower().endswith(SPEC_SUFFIXES)
    return isinstance(data, JobSpec | dict)


def spec_of(
    data: object,
    options: JobOptions,
    *,
    stage: str | None,
    out: str | None,
    allowed_roots: Sequence[str] = (),
) -> JobSpec:
    """The spec of a job. A table is staged into the folder `stage`, below the allowed roots; `out` is
    the output directory where the options name none.

    Raises BadInput for options that do not fit, and where a folder is needed and missing.
    """
    given: dict[str, Any] = {name: each for name, each in options.items() if each is not None}
    _refuse_unknown(given)
    if is_whole(data):
        if given:
            table = "; rows go in as a table, such as pyarrow.table(…)" * isinstance(data, dict)
            raise BadInput(
                f"a whole spec says everything itself: leave out {', '.join(given)}{table}"
            )
        return _whole(data)
    sections = _sections(given, out)
    uris = uris_of(data)
    if uris is None:
        # A mistake in the options is found before a large table is written.
        parse_spec({**sections, "name": "table", "input": {"uri": "table"}}, "the job")
        if stage is None:
            raise BadInput(
                "a table needs a folder that the workers can read, where its rows are staged: give "
                'stage="s3://bucket/staging" or a shared folder'
            )
        storage.check_roots([storage.resolve(stage)], allowed_roots)
        uris = [staging.stage(data, stage)]
        sections.setdefault("name", f"table-{staging.content_hash(uris[0])[:8]}")
    sections["input"] = {"uri": uris[0] if len(uris) == 1 else uris, **sections["input"]}
    sections.setdefault("name", job_name(uris[0]))
    return parse_spec(sections, "the job")


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    known = JobOptions.__annotations__
    if unknown := [name for name in given if name not in known]:
        raise TypeError(f"{unknown[0]!r} is not one of the options of a job: {', '.join(known)}")


def _whole(data: object) -> JobSpec:
    if isinstance(data, JobSpec):
        return data
    if isinstance(data, dict):
        return parse_spec(_plain(data), "the job")
    assert isinstance(data, str | Path)
    return load_spec(Path(data))


def _sections(given: dict[str, Any], out: str | None) -> dict[str, Any]:
    """The spec without its input's uri, as a YAML file would say it."""
    sections: dict[str, Any] = {
        name: _plain(given[name])
        for name in ("name", "pool", "priority", "weight", "batch", "retry", "limits")
        if name in given
    }
    where = given.get("out", out)
    if where is None:
        raise BadInput("out is missing: name the output directory, which the workers must reach")
    sections["output"] = {"uri": str(where)} if isinstance(where, str | Path) else _plain(where)
    if "columns" in given:
        if isinstance(given["columns"], str):
            raise BadInput(f"columns is a list of columns: columns=[{given['columns']!r}]")
        sections["output"]["columns"] = list(given["columns"])
    sections["input"] = {name: given[name] for name in ("id", "where", "limit") if name in given}
    sections["engine"] = _engine(given)
    sections["task"] = _task(given, sections["engine"])
    return sections


def _engine(given: Mapping[str, Any]) -> Any:
    named = [name for name in ("model", "function", "engine") if name in given]
    if len(named) != 1:
        raise BadInput(
            f"{' and '.join(named) or 'nothing'} says what runs: give one of model, function, engine"
        )
    if "model" in given:
        return {"backend": "vllm", "model": given["model"]}
    if "function" in given:
        return {"backend": "function", "callable": function_name(given["function"])}
    return _plain(given["engine"])


def _task(given: Mapping[str, Any], engine: Any) -> Any:
    own = [n for n in ("prompt", "system", "messages", "output", "sampling") if n in given]
    if "task" in given:
        if own:
            raise BadInput(f"{own[0]} stands in the task: leave one of the two out")
        return _plain(given["task"])
    if isinstance(engine, dict) and engine.get("backend") == "function":
        if own:
            raise BadInput(f"{own[0]} is for models, and a function runs: leave one of the two out")
        return {"kind": "function"}
    if "prompt" not in given and "messages" not in given:
        raise BadInput(
            "a model needs a prompt, such as prompt='Sentiment of: {{ text }}', or a task"
        )
    task: dict[str, Any] = {"kind": "generate"}
    task |= {name: _plain(given[name]) for name in ("prompt", "sampling") if name in given}
    if "messages" in given:
        task["messages"] = [_plain(message) for message in given["messages"]]
    if "system" in given:
        if "prompt" not in given:
            raise BadInput("system goes before a prompt; messages say their own roles")
        user = {"role": "user", "content": task.pop("prompt")}
        task["messages"] = [{"role": "system", "content": given["system"]}, user]
    if "output" in given:
        task["output"] = _answer(given["output"])
    return task


def _answer(output: Any) -> Any:
    """What an answer looks like, as the spec says it."""
    if isinstance(output, type) and issubclass(output, BaseModel):
        return {"json_schema": output.model_json_schema()}
    if isinstance(output, StructuredOutput):
        return _plain(output)
    if isinstance(output, Mapping):
        return {"json_schema": dict(output)}
    if isinstance(output, Sequence) and not isinstance(output, str):
        return {"choice": list(output)}
    raise BadInput(
        f"output is {output!r}: give a pydantic model, a list of choices, a JSON schema or a "
        "StructuredOutput"
    )


def _plain(value: Any) -> Any:
    """A section as the values of YAML, with what was set in it and no more."""
    if isinstance(value, Section):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value


def function_name(function: str | Callable[..., Any]) -> str:
    """`module:name` of a function; BadInput for one that another process cannot import."""
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not str(name).isidentifier():
        raise BadInput(
            f"{name or function!r} is defined here, where workers cannot import it: put it into a "
            "module beside, such as rules.py, and give function='rules:name'"
        )
    if getattr(sys.modules.get(module), name, None) is not function:
        raise BadInput(f"{module}:{name} is another object: give function='module:name'")
    return f"{module}:{name}"


def function_folder(function: object) -> str | None:
    """The folder from which this process imported a function; None for a name and for built-ins."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if isinstance(function, str) or module is None or module.__file__ is None:
        return None
    above = module.__name__.count(".") + (Path(module.__file__).stem == "__init__")
    return str(Path(module.__file__).resolve().parents[above])
