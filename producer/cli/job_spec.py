"""The job spec of a command line: made of its flags, or a spec file with the flags laid over it."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightshift.common.errors import BadInput
from nightshift.producer.cli.flags import MODEL_FLAGS, REQUEST_FLAGS, Flags
from nightshift.producer.submit.names import job_name

if TYPE_CHECKING:
    from nightshift.common.spec import JobSpec


def job_spec(target: str, flags: Flags) -> "JobSpec":
    """The spec of `run TARGET` and `submit TARGET`.

    A TARGET that ends in .yaml or .yml is a spec file, and the flags are laid over it. Any other
    TARGET is an input, and the flags are the rest of the spec. BadInput names a flag that is
    missing, that excludes another one, or that does not fit the spec.
    """
    from nightshift.common.spec import load_spec, parse_spec

    _refuse_conflicts(flags)
    if target.lower().endswith((".yaml", ".yml")):
        spec = load_spec(Path(target))
        if not flags.given(*(field.name for field in fields(Flags))):
            return spec
        written = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        _refuse_other_engine(target, written, flags)
        sections = _sections(flags)
        if "engine" in sections:
            sections["engine"]["backend"] = written["engine"]["backend"]
        return parse_spec(_laid_over(written, sections), f"{target} with flags")
    _refuse_missing(flags)
    sections = _sections(flags)
    sections.setdefault("name", job_name(target))
    sections.setdefault("output", {}).setdefault("uri", f"{sections['name']}-out")
    sections["input"] = {"uri": target, **sections.get("input", {})}
    try:
        return parse_spec(sections, "flags")
    except BadInput as error:
        raise BadInput(_with_flags(str(error), flags)) from error


def _with_flags(message: str, flags: Flags) -> str:
    """The message about a spec that flags made, with the flag of a template in place of its key."""
    keys = ["prompt"] if flags.system is None else ["messages.0.content", "messages.1.content"]
    names = ["--prompt"] if flags.system is None else ["--system", "--prompt"]
    for key, name in zip(keys, names, strict=True):
        message = message.replace(f"flags: task: {key}: ", f"{name}: ")
    return message


def _refuse_conflicts(flags: Flags) -> None:
    if flags.callable is not None and (others := flags.given(*MODEL_FLAGS)):
        raise BadInput(
            f"--callable runs a Python function and {others[0]} is for models: give one of them"
        )
    if flags.format == "openai" and (others := flags.given("callable", *REQUEST_FLAGS, "id")):
        raise BadInput(
            f"{others[0]} does not go with --format openai: each request of the file says its own"
        )
    if len(others := flags.given("choice", "schema", "regex", "grammar")) > 1:
        raise BadInput(f"{others[0]} and {others[1]} both say what an answer looks like: give one")
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
    wrong = flags.given("callable") if backend != "function" else flags.given(*MODEL_FLAGS)
    wrong += flags.given("base_url") if backend != "openai" else flags.given("revision")
    if wrong:
        raise BadInput(f"{wrong[0]} does not fit {target}, whose engine.backend is {backend}")


def _sections(flags: Flags) -> dict[str, Any]:
    """The sections of a spec that the flags give; keys of flags that were not given are left out."""
    from nightshift.common.spec.section import put

    sections: dict[str, Any] = {}
    for flag in fields(Flags):
        if flags.given(flag.name):
            value = READERS.get(flag.name, lambda given: given)(getattr(flags, flag.name))
            if value is not None:
                put(sections, flag.metadata["place"], value)
    if flags.callable is not None:
        put(sections, "task.kind", "function")
        put(sections, "engine.backend", "function")
    elif "engine" in sections:
        sections["engine"]["backend"] = "vllm" if flags.base_url is None else "openai"
    if flags.format == "openai":
        put(sections, "task.kind", "requests")
        put(sections, "input.format", "openai")
    if flags.system is not None:
        user = {"role": "user", "content": sections["task"].pop("prompt")}
        sections["task"]["messages"].append(user)
    if "task" in sections:
        sections["task"].setdefault("kind", "generate")
    return sections


def _engine_args(given: list[str]) -> dict[str, Any]:
    args = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"--engine-arg {text!r} is not KEY=VALUE")
        try:
            args[key] = json.loads(value)
        except ValueError:
            args[key] = value
    return args


def _json_file(path: Path) -> Any:
    from nightshift.common import json_errors
    from nightshift.common.spec.parse import read_text

    text = read_text(path, "JSON schema")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        why = json_errors.said(error, has_lines=True)
        raise BadInput(f"--schema {path}: no valid JSON: {why}") from error
    except RecursionError as error:
        raise BadInput(f"--schema {path}: nested too deeply") from error
    except ValueError as error:
        raise BadInput(f"--schema {path}: a number has too many digits") from error


def _grammar_file(path: Path) -> str:
    from nightshift.common.spec.parse import read_text

    return read_text(path, "grammar")


def _words(given: list[str]) -> list[str]:
    return [word.strip() for text in given for word in text.split(",")]


READERS: dict[str, Callable[[Any], Any]] = {
    "system": lambda given: [{"role": "system", "content": given}],
    "format": lambda given: None if given == "openai" else given,
    "engine_arg": _engine_args,
    "choice": _words,
    "schema": _json_file,
    "grammar": _grammar_file,
    "columns": _words,
}
"""What makes the value for the spec of the value of a flag, where the two differ."""

ALTERNATIVES = (("messages", "prompt"), ("choice", "json_schema", "regex", "grammar"))
"""Keys that exclude each other: a flag for one of them removes the others from the spec."""


def _laid_over(written: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    merged = dict(written)
    for group in ALTERNATIVES:
        if any(key in sections for key in group):
            merged = {key: value for key, value in merged.items() if key not in group}
    for key, value in sections.items():
        held = merged.get(key)
        if isinstance(held, dict) and isinstance(value, dict) and key != "json_schema":
            value = _laid_over(held, value)
        merged[key] = value
    return merged
