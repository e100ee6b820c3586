"""Badges of states: a colour by meaning, and always a word and a shape beside the colour. Pure."""

from enum import StrEnum

from markupsafe import Markup


class Meaning(StrEnum):
    """What a state means for somebody who looks; the name of a class of `style.css`."""

    WORK = "work"
    WAITS = "waits"
    DONE = "done"
    FAILED = "failed"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    IDLE = "idle"


MEANINGS = {
    # jobs
    "running": Meaning.WORK,
    "at work": Meaning.WORK,
    "waits": Meaning.WAITS,
    "paused": Meaning.PAUSED,
    "completed": Meaning.DONE,
    "failed": Meaning.FAILED,
    "cancelled": Meaning.CANCELLED,
    # batches and leases
    "pending": Meaning.IDLE,
    "queued": Meaning.IDLE,
    "leased": Meaning.WORK,
    "done": Meaning.DONE,
    "dead": Meaning.FAILED,
    "split": Meaning.DONE,
    "released": Meaning.CANCELLED,
    # slots
    "free": Meaning.IDLE,
    "ready": Meaning.IDLE,
    "loading": Meaning.WORK,
    "draining": Meaning.WAITS,
    "cordoned": Meaning.PAUSED,
    "lost": Meaning.FAILED,
    # batches of the OpenAI API
    "validating": Meaning.WORK,
    "in_progress": Meaning.WORK,
    "finalizing": Meaning.WORK,
    "cancelling": Meaning.WAITS,
    "expired": Meaning.FAILED,
}
"""The meaning of each state that a page shows; any other is idle."""

SHAPES = {
    Meaning.WORK: '<path d="M3 1.5 10 6 3 10.5z"/>',
    Meaning.WAITS: '<path d="M2 1h8L7 6l3 5H2l3-5z"/>',
    Meaning.DONE: '<path class="stroke" d="M2 6.5 5 9.5 10 3"/>',
    Meaning.FAILED: '<path class="stroke" d="M2.5 2.5l7 7m0-7l-7 7"/>',
    Meaning.PAUSED: '<path d="M2.5 1.5h2.5v9H2.5zM7 1.5h2.5v9H7z"/>',
    Meaning.CANCELLED: '<path class="stroke" d="M2 6h8"/>',
    Meaning.IDLE: '<circle class="stroke" cx="6" cy="6" r="3.5"/>',
}
"""The shape of a meaning, in a square of 12."""


def meaning(word: str) -> Meaning:
    """What a state means."""
    return MEANINGS.get(word, Meaning.IDLE)


def state(word: str) -> Markup:
    """The badge of a state: its shape in its colour, and its word."""
    kind = meaning(word)
    return Markup('<span class="state {kind}">{shape}{word}</span>').format(
        kind=kind, shape=shape(kind), word=word.replace("_", " ")
    )


def shape(kind: Meaning) -> Markup:
    """The shape of a meaning alone, for a legend; a word stands beside it."""
    return Markup('<svg class="mark" viewBox="0 0 12 12" aria-hidden="true">{}</svg>').format(
        Markup(SHAPES[kind])  # noqa: S704 - a constant
    )
