"""Structured-output backends. vLLM has one for an engine's life. Where the engine's arguments name none,
the first structured row decides. Every engine here has one from its start, whatever its rows ask for.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vllm import SamplingParams
from vllm.config import StructuredOutputsConfig, VllmConfig

from nightshift.common.errors import NeedsOtherEngine

CONFIG = "structured_outputs_config"
"""The argument of an engine that may name a backend."""

COMPACT = "disable_any_whitespace"
"""The key of that argument that allows no white space in JSON; for xgrammar and guidance alone."""

USUAL = "xgrammar"
"""The backend of an engine whose arguments name none. It takes every kind of form, and most forms."""

OTHERS = ("guidance", "outlines")
"""Backends for a job that the usual one refuses, tried in this order. outlines takes no grammar."""


LOG_PREFIX = re.compile(r"\[[\d:]+\] \S+?:\d+: ")
"""The time and the source line that xgrammar puts before its messages."""


def named(args: Mapping[str, Any]) -> bool:
    """Whether the arguments of an engine name a backend, and so keep it."""
    config = args.get(CONFIG)
    # vLLM itself refuses a value that is not a mapping.
    return config is not None and (not isinstance(config, Mapping) or "backend" in config)


def with_backend(args: Mapping[str, Any], backend: str = USUAL) -> dict[str, Any]:
    """The arguments with this backend where they name none."""
    if named(args):
        return dict(args)
    return {**args, CONFIG: {**(args.get(CONFIG) or {}), "backend": backend}}


def compact(args: Mapping[str, Any]) -> str:
    """The arguments with which an engine allows no white space between the values of JSON, as a spec has them;
    empty where these say so already, or vLLM refuses them.
    """
    config = args.get(CONFIG) or {}
    if not isinstance(config, Mapping) or config.get(COMPACT):
        return ""
    backend = config.get("backend", USUAL)
    if backend not in (USUAL, "guidance"):
        backend = USUAL
    keys = {**config, "backend": backend, COMPACT: True}
    return f"engine.args: {json.dumps({CONFIG: keys})}"


def with_config(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as vLLM's engine takes them beside a parser of thoughts: it sets the parser on the
    settings of structured output, which it does not make of a mapping itself.
    """
    config = args.get(CONFIG)
    if not isinstance(config, Mapping):
        return dict(args)
    return {**args, CONFIG: StructuredOutputsConfig(**config)}


def verify(
    config: VllmConfig, tokenizer: Any, params: SamplingParams, backend: str | None = None
) -> None:
    """Raises what vLLM raises for params that an engine of this configuration would refuse, with another
    `backend` where one is given. Sets the backend of the params.
    """
    structured = config.structured_outputs_config
    if backend is not None:
        structured = replace(structured, backend=backend)
    params.verify(config.model_config, config.speculative_config, structured, tokenizer)


def refuse(
    config: VllmConfig,
    tokenizer: Any,
    args: Mapping[str, Any],
    make: Callable[[], SamplingParams],
    why: str,
) -> str:
    """What `why` the engine's backend refuses a form comes to: NeedsOtherEngine where the arguments name
    no backend and another one takes the form; else the reasons of all.
    """
    reasons = {str(config.structured_outputs_config.backend): why}
    for backend in () if named(args) else OTHERS:
        try:
            verify(config, tokenizer, make(), backend)
        except Exception as error:  # pydantic, vLLM and each backend have types of their own
            reasons[backend] = message(error)
            continue
        raise NeedsOtherEngine(
            f"{USUAL}, the backend of the engine, does not take the form of the answers ({why}): an "
            f"engine with {backend} runs the job",
            with_backend(args, backend),
        )
    if len(set(reasons.values())) == 1:
        return why
    return "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items())


def message(error: Exception) -> str:
    """What vLLM or a backend says, with the cause that it leaves out, on one line."""
    text = str(error)
    if error.__cause__ is not None and str(error.__cause__) not in text:
        text = f"{text} {error.__cause__}"
    return " ".join(LOG_PREFIX.sub("", text).split())
