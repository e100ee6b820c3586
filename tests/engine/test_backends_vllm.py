"""Structured-output backends of the real vLLM: one for an engine's life, whatever its rows ask for."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from nightshift.common.errors import JobRefused, NeedsOtherEngine, NightshiftError
from nightshift.common.spec import VllmEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Engine, Refusal
from tests.engine import test_requests_vllm as requests
from tests.engine.contract import lent
from tests.engine.test_vllm import SENTIMENTS, ask, task, texts
from tests.support.models import ARGUMENTS, MODEL

UNNAMED = {name: value for name, value in ARGUMENTS.items() if name != "structured_outputs_config"}

ODD = {
    "type": "object",
    "patternProperties": {"^a$": {"type": "integer", "multipleOf": 5}},
}
"""A schema that xgrammar does not hold."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """An engine whose spec names no backend."""
    from nightshift.worker.engines.vllm.engine import VllmEngine

    spec = VllmEngineSpec(backend="vllm", model=str(MODEL), args=UNNAMED)
    yield from lent(lambda: VllmEngine.load(spec, None))


def test_a_job_with_an_odd_schema_leaves_nothing_in_the_engine_for_the_next(engine: Engine) -> None:
    with suppress(NightshiftError):
        ask(engine, task(output={"json_schema": ODD}, sampling={"max_tokens": 20}), ["x"])
    choice = task(output={"choice": SENTIMENTS}, sampling={"max_tokens": 20})
    assert set(texts(ask(engine, choice, ["I love it", "It broke"]))) <= set(SENTIMENTS)


def test_an_odd_line_of_a_batch_file_alone_has_an_error(engine: Engine) -> None:
    def shaped(schema: dict[str, Any]) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        return requests.chat(response_format=form, max_tokens=60)

    plain = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    for bodies in ([shaped(ODD)], [shaped(plain)], [shaped(plain), shaped(ODD), shaped(plain)]):
        outcomes = requests.ask(engine, bodies)
        for body, outcome in zip(bodies, outcomes, strict=True):
            if body == shaped(ODD):
                assert isinstance(outcome, Refusal)
                assert outcome.kind is RowErrorKind.REFUSED
                assert outcome.columns["status_code"] == 400
                assert "xgrammar" in outcome.message
            else:
                answer = requests.answered(outcome)["choices"][0]
                if answer["finish_reason"] == "stop":
                    assert json.loads(answer["message"]["content"]) == {"a": "x"}


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    "form",
    [
        {"choice": ["a", "b"]},
        {"json_schema": {"type": "object", "properties": {"a": INTEGER}}},
        {"grammar": 'root ::= "a"'},
    ],
)
def test_a_form_that_the_usual_backend_takes_changes_no_engine(form: dict[str, Any]) -> None:
    assert verified(UNNAMED, form) == "xgrammar"


@pytest.mark.parametrize(
    ("form", "backend"),
    [
        ({"json_schema": ODD}, "guidance"),
        ({"json_schema": {**INTEGER, "multipleOf": 5}}, "guidance"),
        ({"regex": "(?i)yes"}, "guidance"),
        ({"json_schema": {"type": "array", "items": INTEGER, "uniqueItems": True}}, "outlines"),
    ],
)
def test_a_form_that_the_usual_backend_does_not_take_names_the_first_that_does(
    form: dict[str, Any], backend: str
) -> None:
    with pytest.raises(NeedsOtherEngine, match=f"an engine with {backend} runs") as needed:
        verified(UNNAMED, form)
    config = {"backend": backend}
    assert needed.value.engine_args == {**UNNAMED, "structured_outputs_config": config}


def test_a_form_that_no_backend_takes_is_refused_with_the_reason_of_each() -> None:
    with pytest.raises(JobRefused, match=r"xgrammar: .*; guidance: .*; outlines: "):
        verified(UNNAMED, {"grammar": "root ::= none"})


@pytest.mark.parametrize("backend", ["xgrammar", "outlines"])
def test_a_spec_that_names_a_backend_keeps_it(backend: str) -> None:
    named = {**UNNAMED, "structured_outputs_config": {"backend": backend}}
    odd = {"grammar": "root ::= none"}
    with pytest.raises(JobRefused) as refused:
        verified(named, odd)
    assert "guidance" not in str(refused.value)


def test_keys_beside_the_backend_stay_when_another_is_named() -> None:
    compact = {"structured_outputs_config": {"disable_any_whitespace": True}}
    with pytest.raises(NeedsOtherEngine) as needed:
        verified({**UNNAMED, **compact}, {"json_schema": ODD})
    wanted = {"disable_any_whitespace": True, "backend": "guidance"}
    assert needed.value.engine_args["structured_outputs_config"] == wanted


def verified(args: dict[str, Any], form: dict[str, Any]) -> str | None:
    """The backend of a form, by what a worker checks before it reads the weights."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.tokenizers import cached_tokenizer_from_config

    from nightshift.worker.engines.vllm import backends, verify

    config = AsyncEngineArgs(model=str(MODEL), **backends.with_backend(args)).create_engine_config()
    tokenizer = cached_tokenizer_from_config(config.model_config)
    params = verify.verified(config, tokenizer, args, task(output=form))
    return None if params.structured_outputs is None else params.structured_outputs._backend
