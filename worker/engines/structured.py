"""Structured output: is an answer valid, and which JSON is refused."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema
from referencing.exceptions import Unresolvable

from nightshift.common.spec import StructuredOutput, patterns
from nightshift.common.spec.json_schema import Scalar, scalar_properties, validator
from nightshift.common.states import RowErrorKind
from nightshift.common.text import HALF_CHARACTER, counted, has_half_characters
from nightshift.worker.engines import endings
from nightshift.worker.engines.endings import Ending
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal

MANY_BLANKS = 16
"""Characters of white space at the end of an answer that no JSON needs: the model fills it up with them."""

INT64 = range(-(2**63), 2**63)


class AnswerCheck:
    """Checks answers against the structured output of a task.

    `accepts` says whether a text follows the grammar. Without it, where the engine cannot tell, an
    answer that was not cut off is taken for one that follows the grammar. `compact` says which setting of the
    engine allows no white space between the values of JSON.
    """

    def __init__(
        self,
        output: StructuredOutput | None,
        accepts: Callable[[str], bool] | None = None,
        compact: str = "",
    ) -> None:
        self._output = output
        self._accepts = accepts
        self._compact = compact
        self._is_free = output is not None and output.hold == "on_retry"
        schema = output.json_schema if output else None
        self._schema = None if schema is None else validator(schema)
        self._scalars = None if schema is None else scalar_properties(schema)

    def outcome(
        self, text: str, finish_reason: str | None, prompt_tokens: int, output_tokens: int
    ) -> Outcome:
        """The row's answer, or a refusal if the text is not finished, cut off or not valid. Of a text that no engine held to
        its form, white space around it is not part of the answer.
        """
        error = self._error(text, finish_reason)
        if self._is_free and (error is not None or self._schema is not None):
            bare = text.strip()
            if self._error(bare, finish_reason) is None:
                text, error = bare, None
        if error is not None:
            return Refusal(*error, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return Answer(
            columns={"output": text},
            finish_reason=finish_reason,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )

    def _error(self, text: str, finish_reason: str | None) -> tuple[RowErrorKind, str] | None:
        unfinished = endings.error_of(finish_reason)
        if unfinished is not None or self._output is None:
            return unfinished
        if endings.ending(finish_reason) is Ending.CUT and not self._is_whole(text):
            return RowErrorKind.TRUNCATED, self._cut_off(text, finish_reason)
        mismatch = self._mismatch(text, self._output)
        if mismatch is None:
            return None
        return RowErrorKind.INVALID_OUTPUT, f"{mismatch}: {text[:100]!r}"

    def _cut_off(self, text: str, finish_reason: str | None) -> str:
        """The message for an answer that was cut off; white space at its end is counted."""
        if finish_reason != "length":
            return f"the answer was cut off (finish_reason {finish_reason!r}): {text[:100]!r}"
        bare = text.rstrip()
        blank = len(text) - len(bare)
        if self._schema is None or blank < MANY_BLANKS:
            return f"the answer was cut off by max_tokens: {text[:100]!r}"
        then = f": {self._compact} allows none" if self._compact else ""
        return (
            f"the answer ends in {counted(blank, 'character')} of white space, and max_tokens cut it off{then}; "
            f"before them {bare[:100]!r}"
        )

    def _is_whole(self, text: str) -> bool:
        """Whether no text can follow; only a choice can tell: in JSON, 12 may be half of 123."""
        choices = (self._output and self._output.choice) or []
        return [choice for choice in choices if choice.startswith(text)] == [text]

    def _mismatch(self, text: str, output: StructuredOutput) -> str | None:
        if output.grammar is not None:
            follows = self._accepts is None or self._accepts(text)
            return None if follows else "the answer does not follow the grammar"
        if output.choice is not None:
            return None if text in output.choice else "the answer is not one of the choices"
        if output.regex is not None:
            return self._regex_mismatch(text, output.regex)
        return self._json_mismatch(text)

    @staticmethod
    def _regex_mismatch(text: str, regex: str) -> str | None:
        try:
            return None if patterns.matches(regex, text) else "the answer does not match the regex"
        except patterns.UnusablePatternError as error:  # a stored spec is not checked again
            return f"the regex cannot be used ({str(error)[:200]})"

    def _json_mismatch(self, text: str) -> str | None:
        assert self._schema is not None
        try:
            value = strict_json(text)
        except ValueError as error:
            return f"the answer is not JSON ({str(error)[:200]})"
        try:
            self._schema.validate(patterns.matched_by_re2(value))
            if self._scalars is not None:
                typed(value, self._scalars)
        except jsonschema.ValidationError as error:
            return f"the answer does not fit the schema ({error.message[:200]})"
        except (Unresolvable, RecursionError, patterns.UnusablePatternError) as error:
            return f"the schema cannot be followed ({str(error)[:200]})"
        except ValueError as error:
            return f"the answer has no place in the column parsed ({str(error)[:200]})"
        return None


def strict_json(text: str) -> Any:
    """The value of a JSON text; ValueError with the reason for other text.

    Also refused are NaN and numbers beyond a double, a key that comes twice, lone surrogates, and
    nesting that is too deep for Python.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite
        )
        may_hold_halves = "\\u" in text or not text.isascii()
        if may_hold_halves and has_half_characters(json.dumps(value, ensure_ascii=False)):
            raise ValueError(f"it {HALF_CHARACTER}")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def typed(value: object, scalars: Mapping[str, Scalar]) -> dict[str, Any]:
    """The properties of an object in the types of their columns; missing ones are null.

    ValueError for an integer beyond 64 bits, a number beyond a double, and another type.
    """
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return {name: _scalar(name, value.get(name), kind) for name, kind in scalars.items()}


def _scalar(name: str, value: Any, kind: Scalar) -> Any:
    if value is None:
        return None
    match kind, value:
        case ("string", str()) | ("boolean", bool()):
            return value
        case "integer", int() | float() if not isinstance(value, bool) and value == value // 1:
            if int(value) in INT64:
                return int(value)
            raise ValueError(f"{name!r} is an integer of more than 64 bits")
        case "number", int() | float() if not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError as error:
                raise ValueError(f"{name!r} is a number beyond a double") from error
            if number != value:
                raise ValueError(f"{name!r} is a whole number with more digits than a double has")
            return number
    raise ValueError(f"{name!r} is no {kind}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"it has the key {twice!r} twice")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it has the value {text}, which is not a number or is too large")
    return value
