"""What models of each family write after their prompt, and what of that is the answer.

Written by hand in the syntax of each family. `inside` is where the prompt of such an answer ends: True inside a
thought, False where the prompt has closed the thought, None where the model may open one itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.support.families.table import MADE, Made

THOUGHT = "Let me see what the review says."


@dataclass(frozen=True, slots=True)
class Transcript:
    """A text as the model wrote it, and the columns that are right; `answer` is None for a row that was cut
    inside its thought.
    """

    name: str
    inside: bool | None
    text: str
    answer: str | None
    reasoning: str | None = None
    finish_reason: str = "stop"


def of_markers(made: Made) -> Iterator[Transcript]:
    """The shapes of answers of a family whose thoughts stand between markers."""
    start, stop, tool = made.start, made.stop, made.tool_call
    tag = start.removesuffix("thought\n")  # Gemma's thoughts have a header
    inside = made.opened
    opened = "" if inside else start + "\n"
    yield Transcript(
        "a thought, then an answer",
        inside,
        f"{opened}{THOUGHT}\n{stop}\n\npositive",
        "positive",
        THOUGHT,
    )
    yield Transcript(
        "cut inside the thought",
        inside,
        f"{opened}Let me see what",
        None,
        "Let me see what",
        "length",
    )
    yield Transcript("no thought, since the prompt closed it", False, "positive", "positive")
    if inside is None:
        yield Transcript("no thought", None, "positive, I love it", "positive, I love it")
        yield Transcript(
            "an end without a start", None, f"{THOUGHT}\n{stop}\n\npositive", "positive", THOUGHT
        )
        yield Transcript(
            "a marker inside an answer without a thought",
            None,
            f"The tag {stop} ends a thought.",
            "The tag  ends a thought.",
        )
    yield Transcript(
        "two thoughts",
        inside,
        f"{opened}a\n{stop}\n\nIt is fine. {start}b{stop} neutral",
        "It is fine.  neutral",
        "a\nb",
    )
    yield Transcript(
        "a marker inside the answer",
        inside,
        f"{opened}a{stop}The tag {stop} ends a thought.",
        "The tag  ends a thought.",
        "a",
    )
    yield Transcript(
        "a start marker inside the answer",
        inside,
        f"{opened}a{stop}The tag {tag} begins a thought.",
        "The tag  begins a thought.",
        "a",
    )
    yield Transcript(
        "a start marker inside an answer without a thought",
        False,
        f"The tag {tag} begins a thought.",
        "The tag  begins a thought.",
    )
    yield Transcript("an empty answer", inside, f"{opened}a\n{stop}", "", "a")
    yield Transcript("an empty thought", inside, f"{opened}\n{stop}\n\nneutral", "neutral", "")
    yield Transcript(
        "a tool call after the thought", inside, f"{opened}a{stop}\n\n{tool}", tool.strip(), "a"
    )
    if made.ends_thought:
        yield Transcript("a tool call that ends the thought", inside, f"{opened}a{tool}", tool, "a")


def of_harmony() -> Iterator[Transcript]:
    """The shapes of answers of gpt-oss."""
    thought = f"<|channel|>analysis<|message|>{THOUGHT}<|end|>"
    final = "<|start|>assistant<|channel|>final<|message|>"
    yield Transcript(
        "a thought, then an answer", None, f"{thought}{final}positive", "positive", THOUGHT
    )
    yield Transcript(
        "cut inside the thought",
        None,
        "<|channel|>analysis<|message|>Let me see",
        None,
        "Let me see",
        "length",
    )
    yield Transcript("no thought", None, "<|channel|>final<|message|>positive", "positive")
    yield Transcript(
        "two thoughts",
        None,
        f"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>{final}c",
        "c",
        "a\nb",
    )
    yield Transcript(
        "a marker inside the answer",
        None,
        f"{thought}{final}The tag </think> stays.",
        "The tag </think> stays.",
        THOUGHT,
    )
    yield Transcript("an empty answer", None, f"{thought}{final}", "", THOUGHT)
    yield Transcript(
        "a tool call after the thought",
        None,
        f"{thought}<|start|>assistant to=functions.look<|channel|>commentary<|constrain|>json<|message|>"
        '{"at": 1}<|call|>',
        'to=functions.look {"at": 1}',
        THOUGHT,
    )


def without_thoughts(made: Made) -> Iterator[Transcript]:
    """A model that does not think: all of its text is the answer, whatever stands in that."""
    yield Transcript("no thought", None, "positive", "positive")
    yield Transcript(
        "markers of other families",
        None,
        "<think>a</think> positive [THINK]",
        "<think>a</think> positive [THINK]",
    )
    yield Transcript("an empty answer", None, "", "")


def transcripts(made: Made) -> list[Transcript]:
    """Those of one family."""
    if made.tokenizer == "harmony":
        return list(of_harmony())
    if made.splits is None:
        return list(without_thoughts(made))
    if made.opened is False and made.switch is None:  # an instruct-only model of a thinking family
        return [
            Transcript("no thought", False, "positive", "positive"),
            Transcript("an empty answer", False, "", ""),
        ]
    if made.opened is False:  # it thinks when it is turned on
        return list(of_markers(replace(made, opened=made.opened_on)))
    return list(of_markers(made))


EVERY = [(made, each) for made in MADE for each in transcripts(made)]
