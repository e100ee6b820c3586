"""What a model's text must look like: choice, JSON schema, regex, grammar, held against it."""

import json
import re

import jsonschema

from common.spec import StructuredOutput
from common.states import RowErrorKind
from worker.engines.protocol import Answer, Outcome, Refusal


class Check:
    """Holds an answer against what the task says it must look like."""

    def __init__(self, output: StructuredOutput | None) -> None:
        self._output = output
        schema = output.json_schema if output else None
        self._schema = None if schema is None else jsonschema.Draft202012Validator(schema)
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
        misfit = self._misfit(text)
        if finish_reason == "length" and (misfit or self._output.grammar is not None):
            return RowErrorKind.TRUNCATED, f"the answer was cut off by max_tokens: {text[:100]!r}"
        return (
            None if misfit is None else (RowErrorKind.INVALID_OUTPUT, f"{misfit}: {text[:100]!r}")
        )

    def _misfit(self, text: str) -> str | None:
        output = self._output
        if output is None or output.grammar is not None:
            return None
        if output.choice is not None:
            return None if text in output.choice else "the answer is none of the choices"
        if self._regex is not None:
            return None if self._regex.fullmatch(text) else "the answer does not match the regex"
        assert self._schema is not None
        try:
            self._schema.validate(json.loads(text))
        except json.JSONDecodeError:
            return "the answer is no JSON"
        except jsonschema.ValidationError as error:
            return f"the answer does not fit the schema ({error.message[:200]})"
        return None
