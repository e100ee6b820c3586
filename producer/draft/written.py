"""The text of a draft: YAML with comments, whatever the columns and values of the input are called and hold. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from nightshift.common.spec import REQUEST_ID
from nightshift.common.text import counted
from nightshift.producer.draft import guesses
from nightshift.producer.draft.look import Column, Seen
from nightshift.producer.draft.to_fill_in import MARK

GUESS = "# guess:"
"""Begins what a draft says of a line that is a guess."""

COLUMNS = 100
"""Most columns that a draft lists."""

WIDEST = 40
"""Most characters of the name, the type and the example of a column, in a comment."""

WITHOUT_END = 10**9
"""Width of YAML that is never folded."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a draft is made of, beside the look: the input and the output as the spec names them, the name of the
    job, and what a person has filled in already. `schema` is a file with the schema of specs, for editors.
    """

    uri: str
    name: str
    output: str
    model: str | None = None
    prompt: str | None = None
    callable: str | None = None
    schema: str | None = None


def draft(asked: Asked, seen: Seen) -> str:
    """The spec as text, with a comment for each column and each guess."""
    return "".join(f"{line}\n" for line in _lines(asked, seen))


def _lines(asked: Asked, seen: Seen) -> Iterator[str]:
    if asked.schema is not None:
        yield f"# yaml-language-server: $schema={asked.schema}"
    yield f"# A draft by `nightshift init`. Lines with `{GUESS}` are guesses from a look at {_rows(seen)}."
    yield "#"
    yield from _columns(seen)
    yield f"name: {scalar(asked.name)}"
    if asked.callable is None and guesses.is_batch_file(seen.columns):
        yield from _batch_file(asked)
    else:
        yield from _input(asked, seen)
        yield from _task(asked, seen)
    yield from _engine(asked)
    yield "output:"
    yield f"  uri: {scalar(asked.output)}"


def _rows(seen: Seen) -> str:
    bad = f" ({seen.bad:,} more cannot be read)" if seen.bad else ""
    return f"the first {counted(seen.rows, 'row')}{bad}"


def _columns(seen: Seen) -> Iterator[str]:
    """A comment for each column: its name, its type, an example."""
    yield "# Columns, with their types and an example:"
    listed = [
        (shown(column.name), shown(column.type), _said(column, seen.rows))
        for column in seen.columns[:COLUMNS]
    ]
    names = max((len(name) for name, _, _ in listed), default=0)
    types = max((len(kind) for _, kind, _ in listed), default=0)
    for name, kind, said in listed:
        yield f"#   {name:{names}}  {kind:{types}}  {said}".rstrip()
    if more := len(seen.columns) - len(listed):
        yield f"#   and {more:,} more"


def _said(column: Column, rows: int) -> str:
    example = "" if column.example is None else shown(column.example)
    if not column.nulls:
        return example
    return f"{example}  ({column.nulls:,} of {rows:,} are null)".strip()


def _input(asked: Asked, seen: Seen) -> Iterator[str]:
    yield "input:"
    yield f"  uri: {scalar(asked.uri)}"
    if seen.delimiter is not None:
        yield f"  {GUESS} with the usual delimiter the header is the name of one column"
        yield f"  delimiter: {json.dumps(seen.delimiter)}"
    found = guesses.id_columns(seen.columns)
    if not found and (leading := guesses.leading(seen.columns)) is not None:
        yield f"  {GUESS} the first column, with no null and no repeat in {_rows(seen)}"
        yield f"  id: {scalar(leading)}"
        return
    if not found:
        yield (
            f"  {GUESS} no id: no column is named like one and differs in {_rows(seen)}. Rows are told apart by "
            "their number."
        )
        differs = guesses.differing(seen.columns)
        yield f"  # id: {'COLUMN' if differs is None else scalar(differs)}"
        return
    also = f"; so are {', '.join(map(shown, found[1:4]))}" if len(found) > 1 else ""
    yield f"  {GUESS} named like an id, no null and no repeat in {_rows(seen)}{also}"
    yield f"  id: {scalar(found[0])}"


def _task(asked: Asked, seen: Seen) -> Iterator[str]:
    yield "task:"
    if asked.callable is not None:
        yield "  kind: function"
        return
    yield "  kind: generate"
    if asked.prompt is not None:
        yield f"  prompt: {scalar(asked.prompt)}"
        return
    named = next(iter(guesses.id_columns(seen.columns)), guesses.leading(seen.columns))
    column = guesses.text_column(seen.columns, named)
    yield "  # What is asked of each row; {{ column }} stands for the value of a column."
    if column is None:
        yield f"  {GUESS} none: no column has a name that a template can use (letters, digits, _)"
        yield f"  prompt: {scalar(f'{MARK} the task')}"
        return
    nulls = ""
    if column.nulls:
        nulls = (
            f"; {{{{ {column.name} or '' }}}} takes a null as no text, else such a row is an error"
        )
    yield f"  {GUESS} {column.name} is the text that the prompt is about{nulls}"
    yield f"  prompt: {scalar(f'{MARK} the task: {{{{ {column.name} }}}}')}"
    yield "  # What an answer must look like; without it any text:"
    yield "  # output: {choice: [positive, neutral, negative]}"


def _batch_file(asked: Asked) -> Iterator[str]:
    yield "input:"
    yield f"  uri: {scalar(asked.uri)}"
    yield f"  {GUESS} each row is a request of the OpenAI batch format, by its {REQUEST_ID}, url and body"
    yield "  format: openai"


def _engine(asked: Asked) -> Iterator[str]:
    yield "engine:"
    if asked.callable is not None:
        yield "  backend: function"
        yield f"  callable: {scalar(asked.callable)}"
        return
    yield "  backend: vllm"
    if asked.model is None:
        yield "  # A model of the hub, such as Qwen/Qwen3-4B-Instruct-2507, or a folder."
    yield f"  model: {scalar(asked.model or MARK)}"


def scalar(text: str) -> str:
    """A text as YAML on one line, which reads as the same text."""
    style = None if text.isprintable() else '"'
    written = yaml.safe_dump(text, default_style=style, width=WITHOUT_END, allow_unicode=True)
    return written.removesuffix("...\n").rstrip("\n")


def shown(text: str) -> str:
    """A text in a comment: on one line, cut, with escapes for what is not printed."""
    cut = text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in cut
    )
