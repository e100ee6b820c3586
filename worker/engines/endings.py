"""How engines and servers end an answer, and which endings leave an answer: one table for all engines."""

from enum import StrEnum

from nightshift.common.states import RowErrorKind


class Ending(StrEnum):
    """What a finish reason means for the text before it."""

    WHOLE = "whole"
    CUT = "cut"
    FILTERED = "filtered"
    TOOL_CALL = "tool_call"
    BROKEN = "broken"


ENDINGS: dict[str, Ending] = {
    "stop": Ending.WHOLE,
    "length": Ending.CUT,
    "repetition": Ending.CUT,
    "content_filter": Ending.FILTERED,
    "tool_calls": Ending.TOOL_CALL,
    "function_call": Ending.TOOL_CALL,
}
"""Endings by finish reason. Every other reason, null included, is broken: the engine gave up before the model
ended its answer, as `abort` and `error` say.

Truncated text is an answer only of a task for free text. Under a form, more could follow: "12"
may be the beginning of "123".
"""


def ending(finish_reason: object) -> Ending:
    """What a finish reason means; broken for one that is not known."""
    if isinstance(finish_reason, str):
        return ENDINGS.get(finish_reason, Ending.BROKEN)
    return Ending.BROKEN


def error_of(finish_reason: object) -> tuple[RowErrorKind, str] | None:
    """Return why text with this finish reason is not an answer; None if it may be one."""
    match ending(finish_reason):
        case Ending.WHOLE | Ending.CUT:
            return None
        case Ending.FILTERED:
            return RowErrorKind.REFUSED, "the content filter of the server ended the answer"
        case Ending.TOOL_CALL:
            return RowErrorKind.INVALID_OUTPUT, "the model called a tool in place of an answer"
        case Ending.BROKEN:
            reason = "null" if finish_reason is None else repr(finish_reason)[:100]
            return (
                RowErrorKind.REFUSED,
                f"the answer was not finished: its finish_reason is {reason}",
            )
