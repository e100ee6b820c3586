"""What a model's text must look like: choice, JSON schema, regex, grammar, held against it."""

import re
from collections.abc import Callable

import jsonschema
from referencing.exceptions import Unresolvable

from nightshift.common.spec import StructuredOutput
from nightshift.common.spec.json_schema import scalar_properties, validator
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal
from nightshift.worker.rows import strict_json


class Check:
    """Holds an answer against what the task says it must look like.

    `accepts` says whether a text follows the grammar, where the engine can tell; without it a
    grammar's answer is good when it was not cut off.
    """

    def __init__(
        self, output: StructuredOutput | None, accepts: Callable[[str], bool] | None = None
    ) -> None:
        self._output = output
        self._accepts = accepts
        schema = output.json_schema if output else None
        self._schema = None if schema is None else validator(schema)
        self._scalars = None if schema is None else scalar_properties(schema)
        self._regex = re.compile(output.regex) if output and output.regex else None

    def outcome(
        self, text: str, finish_reason: str | None, prompt_tokens: int, output_tokens: int
    ) -> Outcome:
        """The row's answer, or why it is none: cut off or not of the asked form."""
        wrong = self._wrong(text, finish_reason)
        if wrong is not None:
            return Refusal(*wrong, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return Answer(
            columns={"output": text},
            finish_reason=finish_reason,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )

    def _wrong(self, text: str, finish_reason: str | None) -> tuple[RowErrorKind, str] | None:
        if self._output is None:
            return None
        if finish_reason == "length" and not self._is_whole(text):
            return RowErrorKind.TRUNCATED, f"the answer was cut off by max_tokens: {text[:100]!r}"
        misfit = self._misfit(text)
        return (
            None if misfit is None else (RowErrorKind.INVALID_OUTPUT, f"{misfit}: {text[:100]!r}")
        )

    def _is_whole(self, text: str) -> bool:
        """Whether nothing could have followed, which only a choice tells: 12 may be half of 123."""
        choices = (self._output and self._output.choice) or []
        return [choice for choice in choices if choice.startswith(text)] == [text]

    def _misfit(self, text: str) -> str | None:
        output = self._output
        if output is None:
            return None
        if output.grammar is not None:
            follows = self._accepts is None or self._accepts(text)
            return None if follows else "the answer does not follow the grammar"
        if output.choice is not None:
            return None if text in output.choice else "the answer is none of the choices"
        if self._regex is not None:
            return None if self._regex.fullmatch(text) else "the answer does not match the regex"
        return self._misfit_of_json(text)

    def _misfit_of_json(self, text: str) -> str | None:
        assert self._schema is not None
        try:
            value = strict_json.loads(text)
        except ValueError as error:
            return f"the answer is no JSON ({str(error)[:200]})"
        try:
            self._schema.validate(value)
            if self._scalars is not None:
                strict_json.typed(value, self._scalars)
        except jsonschema.ValidationError as error:
            return f"the answer does not fit the schema ({error.message[:200]})"
        except (Unresolvable, RecursionError) as error:
            return f"the schema cannot be followed ({str(error)[:200]})"
        except ValueError as error:
            return f"the answer has no place in the column parsed ({str(error)[:200]})"
        return None
