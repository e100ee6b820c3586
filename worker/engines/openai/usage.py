"""What a request took: tokens as its server counts them, and an estimate of those that it does not count."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from nightshift.worker.engines.protocol import INT32_MAX, Usage

BYTES_A_TOKEN = 4
"""About how many UTF-8 bytes of English a token has."""

IMAGE_TOKENS = 1000
"""Estimate for an image, until the server has counted its tokens."""

LONGEST = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that hold the length of the longest answer."""

DATA_URL = "data:image/"
"""How an image in a body begins."""

OUTPUT_FIELDS = ("choices", "output")
"""Fields of a response that hold what the model wrote."""

TEXT_FIELDS = frozenset(
    {"content", "text", "reasoning", "reasoning_content", "thinking", "refusal", "arguments"}
)
"""Fields inside of these that hold text of the model."""


def usage_of(response: Any, body: Mapping[str, Any]) -> Usage:
    """The tokens of a request, cached and reasoning tokens included: as the response, which is parsed JSON, counts
    them. A count that is missing or impossible is estimated from the text, and `estimated_tokens` has it.
    """
    counts = response.get("usage") if isinstance(response, Mapping) else None
    counts = counts if isinstance(counts, Mapping) else {}
    prompt, prompt_is_exact = _count(counts, "prompt_tokens", "input_tokens")
    output, output_is_exact = _count(counts, "completion_tokens", "output_tokens")
    total, total_is_exact = _count(counts, "total_tokens")
    if output is None and prompt and total is not None and total >= prompt:
        output, output_is_exact = total - prompt, prompt_is_exact and total_is_exact
    if not prompt:  # no request is without a prompt
        prompt, prompt_is_exact = math.ceil(prompt_tokens(body)), False
    if not output and (written := output_bytes(response)):
        output, output_is_exact = math.ceil(written / BYTES_A_TOKEN), False
    prompt, output = min(prompt, INT32_MAX), min(output or 0, INT32_MAX)
    estimated = (0 if prompt_is_exact else prompt) + (
        0 if output_is_exact or not output else output
    )
    return Usage(prompt, output, reasoning_tokens=_reasoning(counts), estimated_tokens=estimated)


def sent_usage(body: Mapping[str, Any]) -> Usage:
    """An estimate of what a request took whose response nobody waited for: its prompt."""
    prompt = min(math.ceil(prompt_tokens(body)), INT32_MAX)
    return Usage(prompt, 0, estimated_tokens=prompt)


def is_counted(response: Any) -> bool:
    """Whether a response has a count of its tokens."""
    return isinstance(response, Mapping) and isinstance(response.get("usage"), Mapping)


def _count(counts: Mapping[str, Any], *names: str) -> tuple[int | None, bool]:
    """Return the count under the first of the names that is present, and whether it is exact: a whole JSON number; None
    for one that is missing or impossible. A fraction of a token is rounded up, and digits in a text are taken.
    """
    value = next((counts[name] for name in names if counts.get(name) is not None), None)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None, False
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None, False
    if not 0 <= number <= INT32_MAX:
        return None, False
    return math.ceil(number), number.is_integer() and not isinstance(value, str)


def _reasoning(counts: Mapping[str, Any]) -> int:
    """How many of the output tokens are thoughts, as the server counts them; 0 if it counts none."""
    details = counts.get("completion_tokens_details") or counts.get("output_tokens_details")
    if not isinstance(details, Mapping):
        return 0
    return _count(details, "reasoning_tokens")[0] or 0


def output_bytes(response: Any) -> int:
    """The UTF-8 bytes that the model wrote, thoughts included."""
    if not isinstance(response, Mapping):
        return 0
    texts = (text for name in OUTPUT_FIELDS for text in _texts(response.get(name), name))
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)


def _texts(value: Any, name: str) -> Iterator[str]:
    """Return the model's texts in the part of a response under the field `name`."""
    waiting = [(value, name)]  # a list and no recursion: a server may nest as deep as it likes
    while waiting:
        each, field = waiting.pop()
        match each:
            case str() if field in TEXT_FIELDS:
                yield each
            case Mapping():
                waiting += [(inner, inner_name) for inner_name, inner in each.items()]
            case list():
                waiting += [(inner, field) for inner in each]


def prompt_tokens(body: Mapping[str, Any]) -> float:
    """About how many tokens the prompt of a request has: its text and its images."""
    images: list[str] = []
    prompts = [_without_images(body.get(name), images) for name in ("messages", "prompt", "input")]
    text = json.dumps([each for each in prompts if each is not None], ensure_ascii=False)
    return len(text.encode(errors="surrogatepass")) / BYTES_A_TOKEN + len(images) * IMAGE_TOKENS


def estimated_tokens(body: Mapping[str, Any]) -> float:
    """About what a request uses at most: its text, its images and its longest answer."""
    longest = next(filter(None, map(body.get, LONGEST)), 0)
    answers = body.get("n") or 1
    if not isinstance(longest, int) or not isinstance(answers, int):
        longest = answers = 0  # the server refuses such a body
    return prompt_tokens(body) + max(0, longest * answers)


def _without_images(value: Any, images: list[str]) -> Any:
    """The value with None in place of its images, which are added to `images`.

    An image may have 80 MB, of which no copy is made.
    """
    match value:
        case str() if value.startswith(DATA_URL):
            images.append(value)
            return None
        case Mapping():
            return {name: _without_images(each, images) for name, each in value.items()}
        case list() | tuple():
            return [_without_images(each, images) for each in value]
    return value
