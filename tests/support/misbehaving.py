"""What servers of the OpenAI API return that is not the answer one expects, and what becomes of such a row.

Each case is one response, which the server gives to every request for the row. The expectation is written by hand:
it is what a person would say of the response, computed by no code of ours.
"""

from dataclasses import dataclass
from typing import Any

from nightshift.common.states import RowErrorKind
from tests.support.remote import Call, Remote, Reply

REFUSED, INVALID = RowErrorKind.REFUSED, RowErrorKind.INVALID_OUTPUT
TRUNCATED = RowErrorKind.TRUNCATED

TRIES = 3
"""How often a row is requested whose 2xx responses have no answer."""

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@dataclass(frozen=True, slots=True)
class Case:
    """A response, and what becomes of its row: the text of an answer or the kind of its error, how often the row is
    requested, and the tokens of one request; `estimated` of them are not those of the server.
    """

    body: Any
    becomes: str | RowErrorKind
    requests: int = 1
    tokens: tuple[int, int] = (7, 3)
    estimated: int = 0


def choice(content: Any = "blue", reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    """A choice of a chat completion; `fields` are those of its message."""
    message = {"role": "assistant", "content": content, **fields}
    return {"index": 0, "message": message, "finish_reason": reason}


def chat(*choices: Any, usage: Any = USAGE, **fields: Any) -> dict[str, Any]:
    """A chat completion with these choices."""
    return {"id": "c-1", "choices": list(choices), "usage": usage, **fields}


CALL = [{"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
TEXT_PARTS = [{"type": "text", "text": "bl"}, {"type": "text", "text": "ue"}]
THOUGHT_PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Sky."}]},
    {"type": "text", "text": "blue"},
]
ERROR = {"error": {"message": "upstream is full", "code": 502}}

CHAT: dict[str, Case] = {
    "stop": Case(chat(choice()), "blue"),
    "length": Case(chat(choice("blu", "length")), "blu"),
    "abort": Case(chat(choice("blu", "abort")), REFUSED, TRIES),
    "error": Case(chat(choice("blu", "error")), REFUSED, TRIES),
    "null": Case(chat(choice("blu", None)), REFUSED, TRIES),
    "unknown": Case(chat(choice("blu", "insufficient_system_resource")), REFUSED, TRIES),
    "number": Case(chat(choice("blu", 7)), REFUSED, TRIES),
    "choice_error": Case(chat(choice("blu") | ERROR), REFUSED, TRIES),
    "filter": Case(chat(choice("blu", "content_filter")), REFUSED),
    "filter_null": Case(chat(choice(None, "content_filter")), REFUSED),
    "refusal": Case(chat(choice(None, refusal="I would rather not")), REFUSED),
    "refusal_empty": Case(chat(choice("", refusal="I would rather not")), REFUSED),
    "content_null": Case(chat(choice(None)), INVALID),
    "content_absent": Case(chat({"message": {}, "finish_reason": "stop"}), INVALID),
    "tool_calls": Case(chat(choice(None, "tool_calls", tool_calls=CALL)), INVALID),
    "tool_calls_stop": Case(chat(choice("", tool_calls=CALL)), INVALID),
    "function_call": Case(
        chat(choice(None, "function_call", function_call={"name": "f"})), INVALID
    ),
    "parts": Case(chat(choice(TEXT_PARTS)), "blue"),
    "thought_parts": Case(chat(choice(THOUGHT_PARTS)), "blue"),
    "only_thoughts": Case(chat(choice(THOUGHT_PARTS[:1])), INVALID),
    "no_parts": Case(chat(choice([])), INVALID),
    "unknown_part": Case(chat(choice([{"type": "image_url"}])), REFUSED, TRIES),
    "content_number": Case(chat(choice(7)), REFUSED, TRIES),
    "html": Case(b"<html>We will be back soon</html>", REFUSED, TRIES, (9, 0), 9),
    "empty": Case(b"", REFUSED, TRIES, (9, 0), 9),
    "list": Case([1, 2], REFUSED, TRIES, (9, 0), 9),
    "error_object": Case({**ERROR, "usage": USAGE}, REFUSED, TRIES),
    "error_text": Case({"error": "no"}, REFUSED, TRIES, (9, 0), 9),
    "no_choice": Case(chat(), REFUSED, TRIES),
    "choices_object": Case({"choices": {}, "usage": USAGE}, REFUSED, TRIES),
    "null_choice": Case(chat(None), REFUSED, TRIES),
    "second_first": Case(chat(choice("red") | {"index": 1}, choice()), "blue"),
    "no_usage": Case(chat(choice(), usage=None), "blue", 1, (9, 1), 10),
    "text_usage": Case(
        chat(choice(), usage={"prompt_tokens": "7", "completion_tokens": "3"}),
        "blue",
        1,
        (7, 3),
        10,
    ),
    "fraction_usage": Case(
        chat(choice(), usage={"prompt_tokens": 6.5, "completion_tokens": 2.5}),
        "blue",
        1,
        (7, 3),
        10,
    ),
    "no_answer_no_usage": Case(chat(choice("blu", None), usage=None), REFUSED, TRIES, (9, 1), 10),
}
"""Responses to a chat completion whose prompt is one character: about nine tokens."""


def vector(*data: Any, usage: Any = None) -> dict[str, Any]:
    """A response of the endpoint for embeddings."""
    return {"data": list(data), "usage": usage or {"prompt_tokens": 7, "total_tokens": 7}}


def one(embedding: Any, index: Any = 0) -> dict[str, Any]:
    """An element of its `data`."""
    return {"object": "embedding", "index": index, "embedding": embedding}


EMBEDDINGS: dict[str, Case] = {
    "vector": Case(vector(one([3.0, 4.0])), "vector", 1, (7, 0)),
    "no_index": Case(vector({"embedding": [3.0, 4.0]}), "vector", 1, (7, 0)),
    "other_index": Case(vector(one([3.0, 4.0], 1)), REFUSED, TRIES, (7, 0)),
    "two": Case(vector(one([3.0, 4.0]), one([5.0, 6.0], 1)), REFUSED, TRIES, (7, 0)),
    "none": Case(vector(), REFUSED, TRIES, (7, 0)),
    "nested": Case(vector(one([[3.0], [4.0]])), REFUSED, TRIES, (7, 0)),
    "text": Case(vector(one("AAAA")), REFUSED, TRIES, (7, 0)),
    "words": Case(vector(one(["a"])), REFUSED, TRIES, (7, 0)),
    "null": Case(vector(one([3.0, None])), REFUSED, TRIES, (7, 0)),
    "bare": Case([[3.0, 4.0]], REFUSED, TRIES, (2, 0), 2),
    "html": Case(b"<html>", REFUSED, TRIES, (2, 0), 2),
}
"""Responses to a request for the embedding of one character: about two tokens."""


class Misbehaving(Remote):
    """Answers the prompt number k with the k-th case, and counts what it was asked for."""

    def __init__(self, cases: dict[str, Case]) -> None:
        super().__init__()
        self._cases = list(cases.values())
        self.behave = self._respond

    def _respond(self, call: Call) -> Reply:
        return Reply(body=self._cases[number(call.text)].body)


def letter(number: int) -> str:
    """The prompt that stands for a case: one character."""
    return chr(ord("0") + number)


def number(text: str) -> int:
    """The case that a prompt stands for."""
    return ord(text) - ord("0")
