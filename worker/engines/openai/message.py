"""The message of a chat completion: its text and its thoughts, whether they are text or a list of parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REASONING_FIELDS = ("reasoning", "reasoning_content")
"""Fields of a message that hold its thoughts, as vLLM's and other servers name them."""

TEXT_PARTS = ("text", "output_text")
THOUGHT_PARTS = ("thinking", "reasoning", "redacted_thinking")
"""Types of parts, as OpenAI, Mistral, Anthropic and others name them."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a server returned for one choice. `content` is None if the message has none; `refusal` is the
    model's own, empty if it did not refuse.
    """

    content: str | None
    thought: str = ""
    refusal: str = ""
    calls_tool: bool = False

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "Message":
        """Reads a message of the API; TypeError for content of another shape."""
        content = message.get("content")
        thoughts: list[str] = []
        refusals: list[str] = []
        if isinstance(content, list):
            texts: list[str] = []
            for each in content:
                _sort_part(each, texts, thoughts, refusals)
            content = "".join(texts) if texts else None
        elif content is not None and not isinstance(content, str):
            raise TypeError("the content of the message is neither text nor a list of parts")
        for name in REASONING_FIELDS:
            if isinstance(found := message.get(name), str) and found:
                thoughts.append(found)
                break
        if isinstance(refusal := message.get("refusal"), str):
            refusals.append(refusal)
        calls = message.get("tool_calls") or message.get("function_call")
        return cls(content, "\n".join(filter(None, thoughts)), "".join(refusals), bool(calls))


def _sort_part(part: Any, texts: list[str], thoughts: list[str], refusals: list[str]) -> None:
    """Adds a part of a message's content to the texts, the thoughts or the refusals."""
    if isinstance(part, str):
        texts.append(part)
        return
    if not isinstance(part, Mapping):
        raise TypeError("a part of the message's content is not an object")
    kind = part.get("type")
    if kind in TEXT_PARTS:
        texts.append(_text(part.get("text")))
    elif kind in THOUGHT_PARTS:
        found = next((part[name] for name in ("thinking", "text", "summary") if part.get(name)), "")
        thoughts.append(_text(found))
    elif kind == "refusal":
        refusals.append(_text(part.get("refusal")))
    else:
        raise TypeError(f"a part of the message's content has the type {str(kind)[:100]!r}")


def _text(value: Any) -> str:
    """Return text, joined if it is a list of text parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(
            _text(each.get("text") if isinstance(each, Mapping) else each) for each in value
        )
    raise TypeError("a part of the message's content has no text")
