"""A chat that a column already holds, as the messages of a request."""

import json
from collections.abc import Mapping
from typing import Any

from nightshift.common import json_errors

ROLES = ("system", "developer", "user", "assistant", "tool")

EMPTY_OF = ("assistant",)
"""Roles whose message may have no text: one that only calls tools."""


def chat(column: str, value: Any) -> list[dict[str, Any]]:
    """The messages of a list of structs, or of the same as JSON; ValueError names what is not a message.

    Fields that are null, as in structs that differ from message to message, are left out. The arguments of
    a tool call may be JSON, as OpenAI's API has them: templates take them as an object.
    """
    if isinstance(value, str):
        value = _json(value, f"the column {column!r} holds no chat: it is")
    if not isinstance(value, list) or not value:
        raise ValueError(f"the column {column!r} holds no chat: it is no list of messages")
    return [
        _message(f"message {number} of the column {column!r}", each)
        for number, each in enumerate(value, 1)
    ]


def _message(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} is no message: it is no object")
    message = {name: each for name, each in value.items() if each is not None}
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"{place} has the role {role!r}; the allowed roles are {', '.join(ROLES)}")
    calls = message.get("tool_calls")
    if calls is not None:
        message["tool_calls"] = [
            _tool_call(place, call) for call in _list(place, "tool_calls", calls)
        ]
    if "content" in message:
        message["content"] = _content(place, message["content"])
    elif role in EMPTY_OF and (message.get("tool_calls") or "reasoning_content" in message):
        message["content"] = ""
    else:
        raise ValueError(f"{place} has no content")
    return message


def _content(place: str, value: Any) -> str:
    """The text; the texts of parts, which some tools write, are joined."""
    if isinstance(value, str):
        return value
    texts = []
    for part in _list(place, "content", value):
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise ValueError(
                f"{place} has a part that is no text: images come by task.messages, whose parts name a column"
            )
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(place: str, value: Any) -> dict[str, Any]:
    call = dict(value) if isinstance(value, Mapping) else {}
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{place} has a tool call without the name of a function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _json(arguments, f"{place} has a tool call whose arguments are")
    own = {name: each for name, each in call.items() if each is not None}
    return {"type": "function", **own, "function": {**function, "arguments": arguments}}


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} no JSON ({json_errors.said(error)})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} no JSON ({error})") from error


def _list(place: str, name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{place} has {name} that is no list")
    return value
