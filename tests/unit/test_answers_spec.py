"""What a spec says of the answers of this year's models, and what is refused before anything runs."""

import json
import re
from typing import Any

import pyarrow as pa
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.formats.output_schema import output_schema
from nightshift.common.spec import STORED, GenerateTask, JobSpec, parse_spec
from nightshift.common.spec.parse import parse_yaml
from nightshift.producer.reaper import manifest
from nightshift.producer.submit.checks import check_columns, check_types

LABELS = {"choice": ["good", "bad"]}
MOOD = {"json_schema": {"type": "object", "properties": {"mood": {"type": "string"}}}}
SAMPLED = {"n": 3, "temperature": 1.0}


def spec(task: dict[str, Any] | None = None, /, **fields: Any) -> JobSpec:
    told = {"kind": "generate", "prompt": "{{ text }}", **fields, **(task or {})}
    if "messages_column" in told:
        told.pop("prompt")
    return parse_spec(
        {
            "name": "x",
            "input": {"uri": "/in", "id": "id"},
            "task": told,
            "engine": {"backend": "vllm", "model": "m"},
            "output": {"uri": "/out"},
        },
        "test",
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "greedy samples": ({"sampling": {"n": 2}}, "sampling.n above 1 needs a temperature above 0"),
    "too many samples": ({"sampling": {"n": 129, "temperature": 1}}, "must be at most 128"),
    "shared samples": ({"sampling": SAMPLED, "dedupe": True}, "share nothing: leave dedupe out"),
    "a vote of one": ({"output": LABELS, "vote": "choice"}, "vote needs sampling.n above 1"),
    "a vote on free text": (
        {"sampling": SAMPLED, "vote": "choice"},
        "'choice' is neither",
    ),
    "a vote on no field": (
        {"sampling": SAMPLED, "output": MOOD, "vote": "stars"},
        "a field of output.json_schema (mood); 'stars' is neither",
    ),
    "two bounds": (
        {
            "sampling": {"max_tokens_column": "a"},
            "sampling_columns": {"max_tokens": "b"},
        },
        "sampling.max_tokens_column and sampling_columns.max_tokens say the same: give one of them",
    ),
    "an argument of the call": (
        {"chat_template_kwargs": {"tokenize": True}},
        "chat_template_kwargs.tokenize is an argument of the call itself, not of the template",
    ),
    "another template": (
        {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
        "chat_template_kwargs.chat_template is an argument of the call itself",
    ),
    "tools": ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools is an argument"),
    "messages": ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages is"),
    "no name": ({"chat_template_kwargs": {"a-b": 1}}, "is no name of a template's variable"),
    "half a column": (
        {"chat_template_kwargs": {"a": {"column": "x", "or": 1}}},
        "the value of a row is {column: NAME}, with nothing around or beside it",
    ),
    "a column within a constant": (
        {"chat_template_kwargs": {"a": [{"b": {"column": "x"}}]}},
        "chat_template_kwargs.a: the value of a row is {column: NAME}, with nothing around",
    ),
    "further samples that are greedy": (
        {
            "sampling": SAMPLED,
            "output": {**LABELS, "on_invalid": {"retries": 1, "temperature": 0}},
        },
        "output.on_invalid.temperature 0 would draw equal samples again",
    ),
    "thoughts before a held answer": (
        {"output": LABELS, "keep_reasoning": True},
        "say task.thinking: on or auto beside keep_reasoning",
    ),
    "two switches": (
        {"thinking": "off", "chat_template_kwargs": {"enable_thinking": True}},
        "thinking and chat_template_kwargs.enable_thinking say the same: give one of them",
    ),
    "a budget where the answer begins at once": (
        {"output": LABELS, "thinking_budget": 3},
        "with output the answer begins at once: say thinking: on beside thinking_budget",
    ),
    "confidence of free text": (
        {"output": {"regex": "a+", "confidence": True}},
        "confidence is the probability of a choice",
    ),
    "two prompts": (
        {"prompt": "{{ a }}", "messages": [{"role": "user", "content": "b"}]},
        "give either messages or prompt, or messages_column",
    ),
    "an unknown word": ({"thinking": "maybe"}, "'auto', 'on' or 'off'"),
}


@pytest.mark.parametrize(("task", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_before_servers_start(task: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput) as caught:
        spec(task)
    assert why in str(caught.value)


COLUMNS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "free text": ({}, ["output"], ["reasoning", "outputs", "vote_share", "confidence"]),
    "kept thoughts": ({"keep_reasoning": True}, ["output", "reasoning", "reasoning_tokens"], []),
    "samples": ({"sampling": SAMPLED}, ["outputs"], ["output", "vote_share"]),
    "a vote": (
        {"sampling": SAMPLED, "output": LABELS, "vote": "choice"},
        ["outputs", "output", "vote_share"],
        ["parsed"],
    ),
    "confidence": ({"output": {**LABELS, "confidence": True}}, ["output", "confidence"], []),
    "numbers": (
        {"sampling": {"logprobs": 2, "prompt_logprobs": 1}},
        ["output", "logprobs", "prompt_logprobs"],
        [],
    ),
    "numbers of samples": (
        {"sampling": {**SAMPLED, "logprobs": 2}},
        ["outputs"],
        ["logprobs"],
    ),
}


@pytest.mark.parametrize(("task", "there", "absent"), COLUMNS.values(), ids=COLUMNS)
def test_columns_are_there_where_the_spec_asks_for_them(
    task: dict[str, Any], there: list[str], absent: list[str]
) -> None:
    schema = output_schema(spec(task), pa.schema([("id", pa.string()), ("text", pa.string())]))
    assert schema is not None
    assert set(there) <= set(schema.names)
    assert not set(absent) & set(schema.names)


def test_a_name_is_reserved_only_where_the_spec_asks_for_the_column() -> None:
    told = spec().model_dump(mode="json", by_alias=True)
    told["output"]["columns"] = ["reasoning"]
    assert "reasoning" in parse_spec(told, "test").passed_columns
    told["task"]["keep_reasoning"] = True
    with pytest.raises(BadInput, match="reasoning"):
        parse_spec(told, "test")


def test_an_answer_of_no_length_is_kept_as_such_and_the_identity_says_256() -> None:
    plain, said = spec(), spec(sampling={"max_tokens": 256})
    assert plain.identity == said.identity
    stored = plain.model_dump(mode="json", by_alias=True, context=STORED)
    assert "max_tokens" not in stored["task"]["sampling"]
    again = JobSpec.model_validate(stored, context=STORED)
    assert not again.task.sampling.has_max_tokens  # type: ignore[union-attr]
    kept = said.model_dump(mode="json", by_alias=True, context=STORED)
    assert kept["task"]["sampling"]["max_tokens"] == 256


@pytest.mark.parametrize("word", ["on", "off"])
def test_the_bare_words_of_yaml_turn_thinking_on_and_off(word: str) -> None:
    text = f"kind: generate\nprompt: x\nthinking: {word}"
    task = parse_yaml(text, "test")
    assert isinstance(task, dict)
    assert isinstance(task["thinking"], bool), "YAML 1.1 reads the word as a truth value"
    assert spec(task).task.thinking == word  # type: ignore[union-attr]


SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("heat", pa.float32()),
        ("chat", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    ]
)

MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "an argument": (
        {"chat_template_kwargs": {"effort": {"column": "hot"}}},
        "task.chat_template_kwargs.effort names the column 'hot'",
    ),
    "a sampling": (
        {"sampling_columns": {"temperature": "hear"}},
        "task.sampling_columns.temperature names the column 'hear' (did you mean 'heat'?)",
    ),
    "a chat": ({"messages_column": "chats"}, "task.messages_column names the column 'chats'"),
}


@pytest.mark.parametrize(("task", "why"), MISSING.values(), ids=MISSING)
def test_columns_that_the_data_have_not_are_named(task: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_columns(spec(task), SCHEMA)
    assert why in str(caught.value)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a sampling of text": (
        {"sampling_columns": {"temperature": "text"}},
        "the column 'text', which is string: it must hold numbers",
    ),
    "a chat of numbers": (
        {"messages_column": "heat"},
        "the column 'heat', which is float: it must hold lists of messages",
    ),
}


@pytest.mark.parametrize(("task", "why"), WRONG.values(), ids=WRONG)
def test_columns_of_another_type_are_named(task: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_types(spec(task), SCHEMA)
    assert why in str(caught.value)


def test_decimals_are_numbers() -> None:
    schema = pa.schema([("text", pa.string()), ("heat", pa.decimal128(4, 2))])
    check_types(spec({"sampling_columns": {"temperature": "heat"}}), schema)


@pytest.mark.parametrize("column", ["chat", "text"])
def test_a_chat_is_a_list_of_structs_or_text(column: str) -> None:
    check_types(spec({"messages_column": column}), SCHEMA)


OPENAI = "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("task", "engine", "why"),
    [
        ({}, {"args": {"n": 4}}, "engine.args.n: say task.sampling.n"),
        (
            {"thinking": "off"},
            {"args": {"chat_template_kwargs": {"a": 1}}},
            "engine.args.chat_template_kwargs would take the place of the task's",
        ),
        ({"thinking": "off"}, {"base_url": OPENAI}, "task.thinking is for servers with a chat"),
        (
            {"chat_template_kwargs": {"a": 1}},
            {"base_url": OPENAI},
            "task.chat_template_kwargs is for servers with a chat template",
        ),
    ],
)
def test_what_a_remote_server_does_not_take_is_refused(
    task: dict[str, Any], engine: dict[str, Any], why: str
) -> None:
    told = spec(task).model_dump(mode="json", by_alias=True, exclude_unset=True)
    usual = {"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    with pytest.raises(BadInput, match=re.escape(why)):
        parse_spec({**told, "engine": {**usual, **engine}}, "test")
    local = {**usual, **engine, "base_url": usual["base_url"], "args": {}}
    assert parse_spec({**told, "engine": local}, "test").sequences == 1


def test_confidence_needs_vllms_raw_numbers_and_them_alone() -> None:
    told = spec({"output": {**LABELS, "confidence": True}}).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    args = {"logprobs_mode": "processed_logprobs"}
    with pytest.raises(BadInput, match="needs vLLM's raw_logprobs"):
        parse_spec({**told, "engine": {**told["engine"], "args": args}}, "test")
    both = {**told["task"], "sampling": {"logprobs": 3}}
    with pytest.raises(BadInput, match="ask vLLM for different numbers of a token"):
        parse_spec({**told, "task": both}, "test")


def test_a_row_takes_a_place_of_the_engine_for_each_sample() -> None:
    assert spec({"sampling": SAMPLED}).sequences == 3


@pytest.mark.parametrize("sampling", [{}, {"max_tokens": 256}])
def test_the_spec_in_a_manifest_is_the_same_job_when_it_is_submitted(
    sampling: dict[str, Any],
) -> None:
    given = spec({"output": MOOD, "sampling": sampling})
    written = manifest._written(given)
    again = parse_spec(json.loads(json.dumps(written)), "test")
    assert isinstance(again.task, GenerateTask)
    assert again.identity == given.identity
    assert again.task.sampling.has_max_tokens is bool(sampling)
    assert written["task"]["output"]["json_schema"] == MOOD["json_schema"]


def test_the_free_text_of_a_remote_server_is_held_to_no_grammar() -> None:
    task = {"kind": "generate", "prompt": "{{ text }}"}
    told = {
        "name": "x",
        "input": {"uri": "/in", "id": "id"},
        "task": {**task, "output": {"grammar": 'root ::= "yes"', "hold": "on_retry"}},
        "engine": {"backend": "openai", "model": "m", "base_url": "http://localhost:1/v1"},
        "output": {"uri": "/out"},
    }
    with pytest.raises(BadInput, match=r"nobody here can tell .* leave hold out"):
        parse_spec(told, "test")
    parse_spec({**told, "task": {**task, "output": {**LABELS, "hold": "on_retry"}}}, "test")


def test_a_spec_of_thoughts_can_be_switched_to_none() -> None:
    found = spec(thinking="off", thinking_budget=3, keep_reasoning=True).task
    assert isinstance(found, GenerateTask)
    assert found.most_thinking_tokens is None
    assert {"reasoning", "reasoning_tokens"} <= set(found.answers)
