"""A batch file judged as a whole, before anything of it runs: the rules of the OpenAI Batch API.

One pass reads the lines and keeps 8 bytes a line; a second one finds the lines of ids that repeat.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nightshift.common import request_checks
from nightshift.common.formats.jsonl.lines import MOST_LINE_BYTES, is_blank, parse_line
from nightshift.common.formats.jsonl.openai_batch import METHOD, id_of
from nightshift.common.text import counted, plural

MOST_SKIPPED = 1_000
"""Requests that are skipped since an earlier line has their custom_id or another model: the spec of the job names each.
"""

MOST_PROBLEMS = 50
"""Problems of a file that are named; the last one says how many more there are."""

BYTES_A_TOKEN = 4
"""Bytes of a body that count as one token before anything is tokenized."""


MOST_ANSWER_TOKENS = 10**7
"""Tokens of one answer that are estimated at most: a line may name any number, and the sum of a file must be one that
Postgres can store. Its engine refuses the line.
"""

LINE_TOO_LONG = "line_too_long"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file, as the API says it; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    @property
    def as_json(self) -> dict[str, Any]:
        """The problem as `errors.data` of a batch has it."""
        return {
            "code": self.code,
            "line": self.line,
            "message": self.message,
            "param": self.param,
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may have."""

    requests: int
    bytes: int
    embedding_inputs: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a good line asks for; `tokens` is an estimate of prompt and answer."""

    custom_id: str
    model: str
    inputs: int
    tokens: int


@dataclass(slots=True)
class FileFacts:
    """What a file asks for, and what is wrong with it. `model_line` is the line that first names the model."""

    rows: int = 0
    inputs: int = 0
    tokens: int = 0
    model: str | None = None
    model_line: int | None = None
    problems: list[Problem] = field(default_factory=list)
    more_problems: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    """Rows that are requests and must not run, with the reason of each."""

    def add(self, problem: Problem) -> None:
        """Keeps the first MOST_PROBLEMS, and counts the others."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more_problems += 1

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The problems as a batch has them."""
        found = [problem.as_json for problem in self.problems]
        if self.more_problems:
            more = f"{counted(self.more_problems, 'more line')} {plural(self.more_problems, 'has', 'have')} a problem"
            found.append(Problem("more_problems", more).as_json)
        return found


def judge(text: bytes, number: int, endpoint: str) -> Asked | Problem:
    """What a line asks for, or what is wrong with it."""
    if len(text) > MOST_LINE_BYTES:
        said = f"the line has more than {MOST_LINE_BYTES >> 20} MiB"
        return Problem(LINE_TOO_LONG, said, number)
    try:
        line = parse_line(text)
    except ValueError as error:
        return Problem("invalid_json_line", f"the line is no request: {error}", number)
    for name in ("custom_id", "method", "url", "body"):
        if name not in line:
            return Problem("missing_required_parameter", f"{name} is missing", number, name)
    custom_id = id_of(text, line)
    method, url, body = (line[name] for name in ("method", "url", "body"))
    if not custom_id:
        return Problem("invalid_custom_id", "custom_id is no text", number, "custom_id")
    if method != METHOD:
        return Problem("invalid_method", f"method is not {METHOD}", number, "method")
    if url != endpoint:
        said = f"url is {str(url)[:100]!r}, and the batch asks for {endpoint}"
        return Problem("invalid_url", said, number, "url")
    if not isinstance(body, dict):
        return Problem("invalid_request", "body is no JSON object", number, "body")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        return Problem("missing_required_parameter", "body.model is missing", number, "body.model")
    if (found := request_checks.mistake(body, endpoint)) is not None:
        field, why = found
        return Problem("invalid_request", why, number, f"body.{field}")
    return Asked(custom_id, model, _inputs(body, endpoint), _tokens(text, body))


def read(
    lines: Callable[[], Iterable[tuple[int, bytes]]],
    endpoint: str,
    limits: Limits,
    *,
    skip: bool = False,
    own_name: Callable[[str], str] = str,
) -> FileFacts:
    """Reads a file, `lines` gives its lines with their numbers. With `skip` a line that is wrong is no problem of
    the file, unless more than MOST_SKIPPED are requests that another line makes wrong: it gets an error of its own.
    `own_name` gives the name of a model for an alias of it.
    """
    facts, hashes = FileFacts(), array("q")
    for row, (number, text) in enumerate(_rows(lines())):
        facts.rows += 1
        if facts.rows > limits.requests:
            facts.problems = [_too_many(limits.requests)]
            facts.more_problems = 0
            return facts
        asked = judge(text, number, endpoint)
        if isinstance(asked, Problem):
            if not skip or asked.code == LINE_TOO_LONG:  # no worker is to read such a line
                facts.add(asked)
            continue
        other = _other_model(facts, asked, number, own_name)
        if other is not None:
            _refuse(facts, row, other, skip=skip)
            if skip:
                continue
        hashes.append(hash(asked.custom_id))
        facts.inputs += asked.inputs
        facts.tokens += asked.tokens
    if not facts.rows:
        facts.add(Problem("empty_file", "the file has no requests"))
    elif facts.model is None and not facts.problems:
        facts.add(Problem("empty_file", "none of the lines of the file is a request"))
    if facts.inputs > limits.embedding_inputs:
        said = f"the file has {facts.inputs:,} inputs of embeddings, and {limits.embedding_inputs:,} are allowed"
        facts.add(Problem("too_many_inputs", said))
    _add_repeated(facts, lines, endpoint, hashes, skip=skip)
    if len(facts.skipped) > MOST_SKIPPED:
        why = (
            f"{counted(len(facts.skipped), 'line')} repeat a custom_id or ask for another model, and "
            f"{MOST_SKIPPED:,} can be skipped"
        )
        facts.add(Problem("too_many_bad_lines", why))
    return facts


def _other_model(
    facts: FileFacts, asked: Asked, number: int, own_name: Callable[[str], str]
) -> Problem | None:
    """What is wrong with a line that asks for another model than the first one; aliases of a model are that model."""
    if facts.model is None:
        facts.model, facts.model_line = asked.model, number
    if asked.model == facts.model or own_name(asked.model) == own_name(facts.model):
        return None
    why = f"the model is {asked.model[:100]!r}, and earlier lines ask for {facts.model[:100]!r}: a file has one model"
    return Problem("mismatched_model", why, number, "body.model")


def _refuse(facts: FileFacts, row: int, problem: Problem, *, skip: bool) -> None:
    """A request that earlier lines make wrong: with `skip` it does not run, else the file is bad."""
    if skip:
        facts.skipped[row] = problem.message
    else:
        facts.add(problem)


def _add_repeated(
    facts: FileFacts,
    lines: Callable[[], Iterable[tuple[int, bytes]]],
    endpoint: str,
    hashes: "array[int]",
    *,
    skip: bool,
) -> None:
    """Names lines whose custom_id an earlier line has that runs."""
    values, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return
    first: dict[str, int] = {}
    for row, (number, text) in enumerate(_rows(lines())):
        asked = judge(text, number, endpoint)
        if isinstance(asked, Problem) or hash(asked.custom_id) not in suspects:
            continue
        if row in facts.skipped:
            continue
        if asked.custom_id in first:
            said = f"the custom_id {asked.custom_id[:100]!r} stands in line {first[asked.custom_id]} already"
            repeated = Problem("duplicate_custom_id", said, number, "custom_id")
            _refuse(facts, row, repeated, skip=skip)
        first.setdefault(asked.custom_id, number)


def _rows(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    return ((number, text) for number, text in lines if not is_blank(text))


def _too_many(most: int) -> Problem:
    return Problem("too_many_requests", f"the file has more than {counted(most, 'request')}")


def _inputs(body: dict[str, Any], endpoint: str) -> int:
    """Inputs of an embedding request: texts, or lists of tokens."""
    if endpoint != "/v1/embeddings":
        return 0
    given = body.get("input")
    if isinstance(given, list) and not all(isinstance(each, int) for each in given):
        return len(given)
    return 1


def _tokens(text: bytes, body: dict[str, Any]) -> int:
    answer = 0
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            answer = max(answer, min(value, MOST_ANSWER_TOKENS))
    return len(text) // BYTES_A_TOKEN + answer
