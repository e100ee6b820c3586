"""An answer without its thoughts: where the markers of a model say that a thought begins and ends.

vLLM's own parsers leave markers in the answer, or take an answer without markers for a thought, each in its
own way (docs/decisions/0036-an-answer-without-its-thoughts.md). Here one rule holds for all models that write markers.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Markers:
    """What stands around a thought. `ends_too` end a thought and belong to the answer, as a tool call does;
    `header` is what a thought begins with behind its marker; `dropped` stand around the answer.
    """

    start: str
    end: str
    ends_too: tuple[str, ...] = ()
    header: str = ""
    dropped: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> "re.Pattern[str]":
        """Any of the markers, as one group."""
        every = sorted((self.start, self.end, *self.ends_too, *self.dropped), key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, every)) + ")")

    def position(self, prompt: str) -> bool | None:
        """Whether a prompt ends inside a thought, by its last marker; None where it has none."""
        opened, closed = prompt.rfind(self.start), prompt.rfind(self.end)
        return None if opened == closed else opened > closed


@dataclass(frozen=True, slots=True)
class Parted:
    """An answer and the thoughts before and within it. `answer` is None where the text ends inside a thought;
    `thought` says whether there was one at all.
    """

    answer: str | None
    reasoning: str = ""
    thought: bool = False


def part(text: str, markers: Markers, inside: bool | None, *, is_held: bool = False) -> Parted:
    """Parts the text that a model wrote after a prompt.

    `inside` says whether the prompt ends inside a thought; None where the prompt says nothing and the model
    may open one. Then an end marker without a start marker ends a thought that began with the text, where it
    stands at the end of a line, as models write it. Text without any marker is an answer. Amid an answer only
    a start marker that an end marker follows begins a thought: another is a word of the answer, and goes
    without the text behind it. No marker is left in the answer, and white space between a thought and the
    answer goes with the marker.

    `is_held` says that the engine held the answer to its form, to the last character and from the first end
    marker on where the prompt had not ended the thought: all of the answer stays.
    """
    if is_held:
        return _held(text, markers, inside)
    pieces = markers.pattern.split(text)
    if inside is None:
        inside = _next(pieces, 1, markers) == markers.end and at_a_line(text, markers.end)
    thoughts: list[str] = []
    answers: list[str] = []
    thought, begun = inside, False
    for number, piece in enumerate(pieces):
        if number % 2 == 0:
            (thoughts if inside else answers).append(piece)
            begun = begun or (not inside and bool(piece.strip()))
        elif piece == markers.start:
            if not inside and (not begun or _next(pieces, number + 2, markers) == markers.end):
                thought = inside = True
        elif piece in markers.ends_too:
            inside, begun = False, True
            answers.append(piece)
        elif piece == markers.end:
            begun = begun and not inside
            inside = False
    if len(pieces) == 1 and not thought:
        return Parted(text)
    reasoning = "\n".join(filter(None, (_thought(each, markers) for each in thoughts)))
    answer = "".join(answers)
    return Parted(None if inside else answer.strip() if thought else answer, reasoning, thought)


def at_a_line(text: str, end: str) -> bool:
    """Whether the first end marker of a text stands at the end or at the beginning of a line."""
    before, _, behind = text.partition(end)
    return before.endswith("\n") or behind.startswith(("\n", "\r\n"))


def _held(text: str, markers: Markers, inside: bool | None) -> Parted:
    opens = inside is None and text.lstrip().startswith(markers.start)
    own = text.partition(markers.start)[2] if opens else text
    thought, end, answer = own.partition(markers.end)
    if inside is False or (inside is None and not opens and not end):
        return Parted(text)
    return Parted(answer if end else None, _thought(thought, markers), thought=True)


def _next(pieces: Sequence[str], at: int, markers: Markers) -> str | None:
    """The first marker from a place on that stands around a thought."""
    return next((each for each in pieces[at::2] if each not in markers.dropped), None)


def _thought(text: str, markers: Markers) -> str:
    return text.strip().removeprefix(markers.header.strip()).strip()


def reasoning_tokens(
    ids: Sequence[int],
    markers: Markers,
    inside: bool | None,
    token_of: Callable[[str], int | None],
    decode: Callable[[Sequence[int]], str],
) -> int:
    """How many tokens the first thought of an answer has, without its markers: those before the first marker
    that ends the thought, or all where no marker ends it.

    `token_of` gives the id of a marker that is a single token. `decode` gives the text of ids, with the markers. A
    marker of several tokens is found by bisection.
    """
    ends = (markers.end, *markers.ends_too)
    end_ids = [token_of(end) for end in ends]
    first = 0 if inside else _behind(ids, markers.start, token_of, decode)
    if None not in end_ids:
        known = set(end_ids)
        return next((at for at, each in enumerate(ids[first:]) if each in known), len(ids) - first)
    low, high = first, len(ids)
    if not _has(ends, decode(ids[first:])):
        return high - first
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _has(ends, decode(ids[first:middle])) else (middle, high)
    # The tokens at low may be the last of a marker that has several.
    while low > first and not _has(ends, decode(ids[low:high])):
        low -= 1
    return low - first


def _has(ends: Sequence[str], text: str) -> bool:
    return any(end in text for end in ends)


def _behind(
    ids: Sequence[int],
    start: str,
    token_of: Callable[[str], int | None],
    decode: Callable[[Sequence[int]], str],
) -> int:
    """How many tokens stand before the thought that a model opens itself, its marker included."""
    token = token_of(start)
    if token is not None:
        return ids.index(token) + 1 if token in ids else 0
    counts = range(1, min(len(ids), START_TOKENS) + 1)
    return next((count for count in counts if start in decode(ids[:count])), 0)


def answer_start(
    ids: Sequence[int],
    markers: Markers,
    token_of: Callable[[str], int | None],
    decode: Callable[[Sequence[int]], str],
) -> int:
    """How many tokens stand before the answer that follows the first thought: its end marker is the last of
    them; what `ends_too` belongs to the answer.
    """
    end, others = token_of(markers.end), [token_of(each) for each in markers.ends_too]
    if end is not None:
        known = {end, *others}
        at = next((at for at, each in enumerate(ids) if each in known), 0)
        return at + (len(ids) > at and ids[at] == end)
    if markers.end not in decode(ids):
        return 0
    ends = range(len(ids) + 1)
    return bisect_left(ends, True, key=lambda stop: markers.end in decode(ids[:stop]))


START_TOKENS = 32
"""Where a start marker of several tokens stands at the latest."""
