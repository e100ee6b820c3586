"""What rows say of themselves: their chat, their sampling, and arguments of the model's template."""

import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nightshift.common.spec import GenerateTask
from nightshift.common.templates.chats import chat
from nightshift.worker.engines.protocol import Refusal, Request
from nightshift.worker.rows.prompts import Renderer

CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": 1}'},
}


def rendered(columns: dict[str, list[Any]], **fields: Any) -> tuple[list[Request], list[Refusal]]:
    told = {"kind": "generate", "prompt": "{{ text }}", **fields}
    if "messages_column" in fields:
        del told["prompt"]
    table = pa.table(columns)
    requests, refused = Renderer(GenerateTask.model_validate(told)).render(
        table, range(table.num_rows)
    )
    return requests, list(refused.values())


def test_arguments_of_the_template_keep_the_types_of_the_row() -> None:
    requests, _ = rendered(
        {"text": ["a", "b"], "think": [False, True], "level": ["low", None]},
        chat_template_kwargs={
            "enable_thinking": {"column": "think"},
            "reasoning_effort": {"column": "level"},
            "budget": 3,
        },
    )
    assert [each.template_arguments for each in requests] == [
        {"enable_thinking": False, "reasoning_effort": "low", "budget": 3},
        {"enable_thinking": True, "budget": 3},
    ]


def test_rows_have_a_sampling_of_their_own() -> None:
    requests, refused = rendered(
        {
            "text": ["a", "b", "c"],
            "heat": [Decimal("0.5"), None, Decimal(1)],
            "longest": [7, None, 9],
            "seed": [None, 3, None],
        },
        sampling_columns={"temperature": "heat", "max_tokens": "longest", "seed": "seed"},
    )
    assert [each.max_tokens for each in requests] == [7, None, 9]
    assert [each.sampling for each in requests] == [
        {"temperature": 0.5},
        {"seed": 3},
        {"temperature": 1.0},
    ]
    assert not refused


REFUSED: dict[str, tuple[str, Any, str]] = {
    "too hot": ("temperature", 11.0, "holds 11.0 for temperature"),
    "no share": ("top_p", 0.0, "holds 0.0 for top_p"),
    "half a token": ("max_tokens", 1.5, "max_tokens is a whole number"),
    "no tokens": ("max_tokens", 0, "holds 0 for max_tokens"),
    "a seed below 0": ("seed", -1, "holds -1 for seed"),
    "not a number": ("temperature", float("nan"), "temperature"),
    "text": ("temperature", "hot", "holds 'hot', which is no temperature"),
    "a truth value": ("top_k", True, "holds True, which is no top_k"),
}


@pytest.mark.parametrize(("name", "value", "why"), REFUSED.values(), ids=REFUSED)
def test_a_sampling_that_no_row_can_have_is_an_error_of_the_row(
    name: str, value: Any, why: str
) -> None:
    requests, refused = rendered({"text": ["a"], "own": [value]}, sampling_columns={name: "own"})
    assert not requests
    assert why in refused[0].message


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "behind you", "tool_call_id": "1"},
]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_column_holds_a_chat_with_tools(as_json: bool) -> None:
    column = [json.dumps(CHAT) if as_json else CHAT]
    requests, refused = rendered({"chat": column}, messages_column="chat")
    assert not refused
    messages = requests[0].messages
    assert messages is not None
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "tool"]
    assert messages[2]["content"] == ""
    assert messages[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": 1}}
    assert messages[3] == {"role": "tool", "content": "behind you", "tool_call_id": "1"}
    assert not requests[0].is_plain_prompt


def test_markers_and_templates_in_a_chat_stay_text() -> None:
    text = "{{ 7 * 7 }} <think> {% raw %}"
    assert chat("c", [{"role": "user", "content": text}])[0]["content"] == text


NO_CHAT: dict[str, tuple[Any, str]] = {
    "no JSON": ("[{", "the column 'c' holds no chat: it is no JSON"),
    "an object": ({"role": "user"}, "it is no list of messages"),
    "null": (None, "it is no list of messages"),
    "no message": ([], "it is no list of messages"),
    "a word": (["hi"], "message 1 of the column 'c' is no message: it is no object"),
    "another role": (
        [{"role": "robot", "content": "x"}],
        "message 1 of the column 'c' has the role 'robot'; the allowed roles are system, developer, user",
    ),
    "no content": ([{"role": "user"}], "message 1 of the column 'c' has no content"),
    "an image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "has a part that is no text: images come by task.messages",
    ),
    "a call without a name": (
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
        "has a tool call without the name of a function",
    ),
    "a call with broken arguments": (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        "has a tool call whose arguments are no JSON",
    ),
}


@pytest.mark.parametrize(("value", "why"), NO_CHAT.values(), ids=NO_CHAT)
def test_what_is_no_chat_is_said_in_one_sentence(value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        chat("c", value)
    assert "\n" not in str(caught.value)
