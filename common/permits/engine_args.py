"""Which of the arguments in engine.args a job may set freely, and which need the operator's word."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from nightshift.common.errors import BadInput
from nightshift.common.permits import models
from nightshift.common.permits import vllm_arguments as vllm
from nightshift.common.public_text import private
from nightshift.common.spec import OpenaiEngineSpec, TransformersEngineSpec, VllmEngineSpec
from nightshift.common.spec.engines import EngineSpec
from nightshift.common.text import did_you_mean

SETTING = "NIGHTSHIFT_ALLOWED_ENGINE_ARGS"

OPENAI_PLAIN = frozenset(
    " ".join(
        (
            "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty",
            "max_tokens max_completion_tokens min_tokens stop stop_token_ids ignore_eos bad_words",
            "seed logit_bias logprobs top_logprobs length_penalty use_beam_search",
            "response_format structured_outputs guided_json guided_regex guided_choice",
            "guided_grammar reasoning reasoning_effort thinking verbosity chat_template_kwargs",
            "add_generation_prompt continue_final_message add_special_tokens skip_special_tokens",
            "spaces_between_special_tokens include_stop_str_in_output truncate_prompt_tokens",
            "dimensions encoding_format input_type truncate priority user safety_identifier",
            "prompt_cache_key",
        )
    ).split()
)
"""Fields of a remote request that only say how the row is answered."""

OPENAI_PLAIN_VALUES = {"service_tier": frozenset({"auto", "default", "flex"})}


class Kind(StrEnum):
    """The permission that a job needs to set an argument."""

    PLAIN = "plain"
    """None."""

    OPERATOR = "operator"
    """The operator's word, by the argument's name."""

    RUNS_CODE = "runs code"
    """The operator's word, by name and model."""


@dataclass(frozen=True, slots=True)
class Word:
    """The operator's word for an argument; `models` is a pattern, None where any model is meant.

    The pattern may end with @ and a pattern of revisions. Without, it is for the model's default
    branch alone: a hub keeps the proposals of strangers as revisions of the model.
    """

    name: str
    models: str | None

    @classmethod
    def parse(cls, text: str) -> "Word":
        """Reads NAME or NAME:MODEL_PATTERN; BadInput for what is neither, and for code without a
        model.
        """
        name, colon, models = text.partition(":")
        if not name or (colon and not models):
            raise BadInput(f"{SETTING}: {text!r} is neither NAME nor NAME:MODEL")
        if not colon and name.partition(".")[0] in vllm.RUNS_CODE:
            raise BadInput(f"{SETTING}: {name} runs code: name the model, as {name}:org/model")
        return cls(name, models or None)

    def allows(self, name: str, kind: Kind, named: Sequence[tuple[str, str | None]]) -> bool:
        """Whether this word allows the argument `name` for every model and revision in `named`. A word without
        a model allows no argument that runs code.
        """
        if name != self.name and not name.startswith(f"{self.name}."):
            return False
        if self.models is None:
            return kind is not Kind.RUNS_CODE
        return all(_matches(self.models, *model) for model in named)


def _matches(pattern: str, model: str, revision: str | None) -> bool:
    if pattern.startswith("/"):  # a folder has no revision, and its name may have an @
        return revision in (None, "main") and fnmatchcase(model, models.real(pattern))
    of_model, at, of_revision = pattern.rpartition("@")
    if not at:
        return revision in (None, "main") and fnmatchcase(model, pattern)
    return fnmatchcase(model, of_model) and fnmatchcase(str(revision or "main"), of_revision)


def words(texts: Sequence[str]) -> list[Word]:
    """The operator's words; BadInput for one that cannot be meant."""
    return [Word.parse(text) for text in texts]


def check(engine: EngineSpec, allowed: Sequence[str]) -> None:
    """BadInput for an argument that needs the operator's word and does not have it."""
    given = words(allowed)
    named = named_models(engine)
    for name, kind in guarded(engine).items():
        if not any(word.allows(name, kind, named) for word in given):
            raise BadInput(_refusal(engine, name, kind))


def refuse_unknown(engine: EngineSpec, allowed: Sequence[str]) -> None:
    """BadInput for an argument that this release does not know as one of vLLM's, unless the operator names it: a newer
    vLLM may have it.
    """
    if not isinstance(engine, VllmEngineSpec):
        return
    by_operator = {word.name for word in words(allowed)}
    for name in engine.args:
        if name in vllm.PLAIN | vllm.OPERATOR | vllm.RUNS_CODE | by_operator:
            continue
        raise BadInput(
            f"engine.args.{name} is no argument of vLLM that this release knows{_near(name)}: where a newer vLLM has "
            f"it, name it as {name}:{private(engine.model)} in {SETTING}"
        )


def guarded(engine: EngineSpec) -> dict[str, Kind]:
    """The arguments of an engine that are not plain, `name.key` where one key of several is meant.

    The arguments of a function's class belong to that function.
    """
    match engine:
        case VllmEngineSpec(args=args):
            kinds = {name: _kind_with(name, value) for name, value in _keys(args)}
        case OpenaiEngineSpec(args=args):
            kinds = {name: _openai_kind(name, value) for name, value in args.items()}
        case _:
            return {}
    return {name: kind for name, kind in kinds.items() if kind is not Kind.PLAIN}


def named_models(engine: EngineSpec) -> list[tuple[str, str | None]]:
    """The models that an engine names, folders by their places, with their revisions: its own first,
    then those of its arguments, a tokenizer and drafts.
    """
    match engine:
        case VllmEngineSpec(model=model, revision=revision, args=args):
            draft = args.get("speculative_config")
            draft = draft if isinstance(draft, Mapping) else {}
            named = [
                (args.get("hf_config_path"), revision),
                (args.get("spec_model"), None),
                (draft.get("model"), draft.get("revision")),
            ]
            if args.get("tokenizer") or args.get("tokenizer_revision"):
                named.append((args.get("tokenizer") or model, args.get("tokenizer_revision")))
            every = [(model, revision), *((str(each), at) for each, at in named if each)]
            return [(models.placed(each), at) for each, at in every]
        case TransformersEngineSpec(model=model, revision=revision):
            return [(models.placed(model), revision)]
        case OpenaiEngineSpec(model=model):
            return [(model, None)]
    return []


def with_own(engine: EngineSpec, allowed: Sequence[str]) -> tuple[str, ...]:
    """The operator's words with one more for each argument of an engine's own that needs one."""
    return tuple(dict.fromkeys([*allowed, *(f"{name}:*@*" for name in guarded(engine))]))


def _keys(args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each argument with its value; in place of an argument that has plain keys, each of its keys."""
    parents = {key.partition(".")[0] for key in vllm.PLAIN_KEYS}
    for name, value in args.items():
        if name in parents and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            yield name, value


def vllm_kind(name: str) -> Kind:
    """The permission that an argument of vLLM needs for its worst value. A name that is in no set may run code."""
    if name in vllm.PLAIN or name in vllm.PLAIN_KEYS:
        return Kind.PLAIN
    return Kind.OPERATOR if name.partition(".")[0] in vllm.OPERATOR else Kind.RUNS_CODE


def _kind_with(name: str, value: Any) -> Kind:
    # Nothing, in place of a class or a file, runs no code.
    is_plain = name in vllm.RUNS_CODE and not value
    if isinstance(value, str):
        is_plain |= value in vllm.PLAIN_VALUES.get(name, ())
        # vLLM takes a text that no file has as its name for the template itself.
        is_plain |= name == "chat_template" and ("{{" in value or "{%" in value)
    return Kind.PLAIN if is_plain else vllm_kind(name)


def _openai_kind(name: str, value: Any) -> Kind:
    is_plain = value is None or name in OPENAI_PLAIN  # null leaves a field out
    if is_plain or (isinstance(value, str) and value in OPENAI_PLAIN_VALUES.get(name, ())):
        return Kind.PLAIN
    return Kind.OPERATOR


def _refusal(engine: EngineSpec, name: str, kind: Kind) -> str:
    what = f"engine.args.{name}"
    if isinstance(engine, VllmEngineSpec) and engine.args_auto:
        what += ", which auto stands for,"
    if kind is Kind.OPERATOR:
        return (
            f"{what} is not for jobs to set: the operator of the workers allows it as {name} in "
            f"{SETTING}"
        )
    [(model, revision), *_] = named_models(engine)
    at = f"@{revision}" if revision not in (None, "main") else ""
    own = name.partition(".")[0]
    if own in vllm.RUNS_CODE:
        why = f"{what} may run code in the worker"
    else:
        why = (
            f"{what} is no argument of vLLM that this release knows{_near(own)}, so it may run code"
        )
    return (
        f"{why}: the operator of the workers allows it by model, as {name}:{model}{at} in {SETTING}"
    )


def _near(name: str) -> str:
    names = [*vllm.PLAIN, *vllm.OPERATOR, *vllm.RUNS_CODE]
    return did_you_mean(name.replace("-", "_").lower(), names)
