"""Tokens of a request: estimated before it is sent, and as the server counted them."""

import json
from collections.abc import Mapping
from typing import Any

BYTES_A_TOKEN = 4
"""About how many UTF-8 bytes of English a token has."""

IMAGE_TOKENS = 1000
"""Estimate for an image, until the server has counted its tokens."""

DATA_URL = "data:image/"
"""How an image in a body begins."""


def estimated_tokens(body: Mapping[str, Any]) -> float:
    """About what a request uses at most: its text, its images and its longest answer."""
    images: list[str] = []
    prompts = [_without_images(body.get(name), images) for name in ("messages", "prompt", "input")]
    text = json.dumps([each for each in prompts if each is not None], ensure_ascii=False)
    size = len(text.encode(errors="surrogatepass"))
    longest = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    answers = body.get("n") or 1
    if not isinstance(longest, int) or not isinstance(answers, int):
        longest = answers = 0  # the server refuses such a body
    tokens = size / BYTES_A_TOKEN + len(images) * IMAGE_TOKENS
    return tokens + max(0, longest * answers)


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


def usage(data: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and output tokens as the server counts them, cached and reasoning tokens included.

    A count that is missing or impossible is 0.
    """
    counts = data.get("usage")
    if not isinstance(counts, Mapping):
        return 0, 0
    return _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))


def _count(value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_whole and 0 <= value < 2**31 else 0
