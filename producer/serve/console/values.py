"""How the values of rows are drawn: briefly in a line, or whole: JSON as a tree, long texts folded, thoughts folded,
shares of labels and tokens as bars. Pure; everything that rows contain is escaped.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from nightshift.common.text import counted, whole_characters
from nightshift.producer.serve.console import drawing, tree

MOST_BRIEF = 240
"""Characters of a value in the three lines of a row."""

MOST_OPEN = 1_000
"""Characters of a text that are shown at once where a row is open."""

MOST_TEXT = 65_536
"""Characters of a value that a page has at all."""

MOST_BARS = 24
"""Labels or tokens with a bar of their own."""

MOST_SAMPLES = 32

BAR_WIDTH, BAR_HEIGHT = 96, 8


def brief(value: Any) -> Markup:
    """A value in a line or three, which the style sheet cuts; an image as one."""
    if value is None:
        return tree.NULL
    if value == "" and isinstance(value, str):
        return tree.EMPTY
    if (picture := drawing.image(value)) is not None:
        return picture
    found = as_json(value) if isinstance(value, str) else None
    return Markup.escape(tree.preview(value if found is None else found, MOST_BRIEF))


def whole(value: Any, name: str) -> Markup:
    """A value with all that a page has of it; ids of what opens begin with `name`."""
    if (picture := drawing.image(value)) is not None:
        return picture
    if isinstance(value, Mapping | list | tuple):
        return tree.tree(value, name)
    if not isinstance(value, str):
        return tree.leaf(value)
    found = as_json(value)
    return tree.tree(found, name) if found is not None else text(value, name)


def as_json(value: str) -> Any:
    """The list or the mapping that a text holds; None where it holds neither."""
    if value[:1] not in ("{", "[") or len(value) > MOST_TEXT:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def text(value: str, name: str) -> Markup:
    """A text; a long one opens."""
    if not value:
        return tree.EMPTY
    left = len(value) - MOST_TEXT
    said = f"… and {counted(left, 'character')} more, which the output has" if left > 0 else ""
    shown = whole_characters(value[:MOST_TEXT]) + said
    if len(shown) <= MOST_OPEN:
        return Markup('<span class="text">{}</span>').format(shown)
    return Markup(
        '<details class="long" id="{}"><summary><span class="text begin">{}… </span>'
        '<span class="more">Show all</span><span class="less">Show less</span></summary><span class="text">{}</span></details>'
    ).format(name, shown[:MOST_OPEN], shown)


def thoughts(value: str | None, tokens: int | None, name: str) -> Markup:
    """What a model thought before its answer, folded; how many tokens, where that is known."""
    if not value:
        return tree.NULL if value is None else tree.EMPTY
    size = (
        f"{counted(len(value), 'character')}" if tokens is None else f"{counted(tokens, 'token')}"
    )
    return Markup(
        '<details class="thoughts" id="{}"><summary>Thoughts ({})</summary>'
        '<span class="text">{}</span></details>'
    ).format(name, size, whole_characters(value[:MOST_TEXT]))


def bars(shares: Sequence[tuple[str, float | None]]) -> Markup:
    """Names with a share from 0 to 1 as bars, in this order; at most MOST_BARS."""
    lines = [
        Markup(
            '<li><span class="label">{}</span><svg aria-hidden="true" viewBox="0 0 {w} {h}" '
            'width="{w}" height="{h}"><rect class="track" width="{w}" height="{h}" rx="2"/>'
            '<rect class="share" width="{wide:.1f}" height="{h}" rx="2"/></svg>'
            '<span class="figure">{said}</span></li>'
        ).format(
            tree.preview(label, 60),
            w=BAR_WIDTH,
            h=BAR_HEIGHT,
            wide=BAR_WIDTH * min(max(share or 0.0, 0.0), 1.0),
            said="—" if share is None else f"{100 * share:.1f} %",
        )
        for label, share in shares[:MOST_BARS]
    ]
    if len(shares) > MOST_BARS:
        lines.append(
            Markup('<li class="none">… and {:,} more</li>').format(len(shares) - MOST_BARS)
        )
    return Markup('<ul class="bars">{}</ul>').format(Markup("").join(lines))


def column(name: str, row: Mapping[str, Any], place: str) -> Markup:
    """The value of an output column of a row."""
    value = row.get(name)
    match name, value:
        case "reasoning", str():
            return thoughts(value, row.get("reasoning_tokens"), place)
        case "probabilities", Mapping() if _are_numbers(value.values()):
            return bars(sorted(value.items(), key=lambda each: -(each[1] or 0.0)))
        case (("logprobs" | "prompt_logprobs"), list()) if value and _are_tokens(value):
            shown = [(each["token"] or "", _share(each.get("logprob"))) for each in value]
            return Markup(
                '<details class="tokens" id="{}"><summary>{:,} tokens by probability</summary>{}</details>'
            ).format(place, len(value), bars(shown))
        case "outputs", list() if value and all(isinstance(each, Mapping) for each in value):
            return _samples(value, place)
        case _:
            return whole(value, place)


def _samples(samples: Sequence[Mapping[str, Any]], place: str) -> Markup:
    """Several answers to one row, each with its columns."""
    drawn = [
        Markup("<li><small>Answer {} of {}</small><dl>{}</dl></li>").format(
            number,
            len(samples),
            Markup("").join(
                Markup("<dt>{}</dt><dd>{}</dd>").format(
                    name, column(name, sample, f"{place}-{number}-{name}")
                )
                for name in sample
            ),
        )
        for number, sample in enumerate(samples[:MOST_SAMPLES], 1)
    ]
    return Markup('<ol class="samples">{}</ol>').format(Markup("").join(drawn))


def _share(logprob: Any) -> float | None:
    return math.exp(min(logprob, 0.0)) if isinstance(logprob, int | float) else None


def _are_numbers(values: Any) -> bool:
    return all(each is None or isinstance(each, int | float) for each in values)


def _are_tokens(values: Sequence[Any]) -> bool:
    return all(isinstance(each, Mapping) and "token" in each for each in values)


def said(row: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, Markup]]:
    """The columns of a row that its three lines have, briefly: neither thoughts nor numbers of tokens first."""
    behind = [name for name in names if name in BEHIND]
    first = [name for name in names if name not in BEHIND and name not in FOLDED]
    return [(name, brief(_told(name, row.get(name)))) for name in [*first, *behind][:MOST_SAID]]


MOST_SAID = 6
"""Columns in the three lines of a row."""

BEHIND = ("finish_reason", "prompt_tokens", "output_tokens", "reasoning_tokens", "request_id")
FOLDED = ("reasoning", "logprobs", "prompt_logprobs", "error")


def _told(name: str, value: Any) -> Any:
    """What an answer says: of a response of the OpenAI API the text of its first message, of several samples
    their answers, of labels the likeliest.
    """
    if name == "probabilities" and isinstance(value, Mapping) and _are_numbers(value.values()):
        label, share = max(value.items(), key=lambda each: each[1] or 0.0, default=("", None))
        return f"{label} {share:.0%}" if share is not None else value
    if name == "outputs" and isinstance(value, list):
        return [each.get("output") if isinstance(each, Mapping) else each for each in value]
    if name == "response" and isinstance(value, str):
        match as_json(value):
            case {"choices": [{"message": {"content": str(content)}}, *_]} if content:
                return content
            case {"choices": [{"text": str(content)}, *_]}:
                return content
    return value
