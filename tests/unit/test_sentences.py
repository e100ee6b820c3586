"""What a person reads of a mistake: words of ours in place of those of pydantic, PyYAML, Arrow and the system."""

import ast
import errno
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic_core.core_schema import ErrorType
from typer.testing import CliRunner

from nightshift.common import json_errors
from nightshift.common.errors import BadInput
from nightshift.common.formats.arrow_types import arrow_type
from nightshift.common.formats.jsonl.lines import parse_line
from nightshift.common.formats.source_files import lines_of
from nightshift.common.settings import Settings
from nightshift.common.spec import load_spec, parse_spec
from nightshift.common.spec.parse import parse_yaml
from nightshift.common.system_errors import told
from nightshift.common.text import counted, counted_batches, left_out_rows
from nightshift.common.validation import PHRASES, phrase
from nightshift.producer.cli.app import app
from nightshift.producer.submit.submit import survey

SPEC: dict[str, Any] = {
    "name": "s",
    "input": {"uri": "in.jsonl", "id": "id"},
    "task": {"kind": "generate", "prompt": "{{ text }}"},
    "engine": {"backend": "vllm", "model": "m"},
    "output": {"uri": "out"},
}

GONE = object()

MISTAKES: dict[str, tuple[str, Any, str]] = {
    "no name": ("name", GONE, "name: the key is missing"),
    "no kind": ("task.kind", GONE, "task: the key kind is missing"),
    "kind": ("task.kind", "genrate", "(did you mean 'generate'?)"),
    "backend": ("engine.backend", "vlm", "engine: backend 'vlm' is not one of 'vllm', "),
    "two kinds": ("input.uri", 5, "input.uri: must be text, or a list"),
    "deeper": ("input.uri", ["a", 5], "input.uri.1: must be text: put it in quotes"),
    "text": ("engine.revision", 3.4, "engine.revision: must be text: put it in quotes"),
    "whole number": ("priority", "high", "priority: must be a whole number"),
    "least": ("batch.rows", 0, "batch.rows: must be at least 1"),
    "most": ("priority", 5000, "priority: must be at most 1,000"),
    "above": ("limits.budget", -1, "limits.budget: must be greater than 0"),
    "number": ("task.sampling.temperature", "hot", "temperature: must be a number"),
    "one of": ("output.format", "xlsx", "output.format: 'xlsx' is not one of 'parquet' or 'jsonl'"),
    "section": ("batch", None, "batch: must be a section: keys with values"),
    "list": ("output.columns", "id", "output.columns: must be a list, such as [a, b]"),
    "true": ("input.unique_id", "maybe", "input.unique_id: must be true or false"),
    "near": ("task.promt", "x", "task.promt: unknown key (did you mean 'prompt'?)"),
    "elsewhere": ("task.choice", ["a"], "unknown key (did you mean task.output.choice?)"),
    "strange": ("task.zzz", 1, "task.zzz: unknown key"),
    "other kind": ("task.text", "x", "task.text: unknown key for this kind of task"),
    "price": (
        "limits.budget",
        3,
        "limits.budget needs a price: give engine.price_per_hour, or engine.price_per_million_prompt_tokens and "
        "engine.price_per_million_output_tokens",
    ),
}

FOREIGN = re.compile(
    r"Input should|Field required|Input tag|\[Errno|discriminator|unable to parse|unhashable|<block|"
    r"constructing|cannot start any|No such file|unicode string"
)
"""Words of libraries that no sentence may hold."""


@pytest.mark.parametrize(("place", "value", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_spec_is_told_in_our_words(place: str, value: Any, said: str) -> None:
    spec = deepcopy(SPEC)
    *path, key = place.split(".")
    section = spec
    for name in path:
        section = section.setdefault(name, {})
    section[key] = value
    if value is GONE:
        del section[key]
    with pytest.raises(BadInput) as caught:
        parse_spec(spec, "s.yaml")
    assert said in str(caught.value)
    assert not FOREIGN.search(str(caught.value))


def test_every_type_of_error_that_a_phrase_is_for_is_one_of_pydantics() -> None:
    assert set(PHRASES) <= set(get_args(ErrorType))


def test_a_type_without_a_phrase_is_told_without_pydantics_words() -> None:
    said = phrase({"type": "complex_type", "input": 1, "msg": "Input should be a complex"})
    assert said == "this value does not fit here"


YAML = {
    "prompt: {{ text }}\n": 'line 1: put a template in quotes, as in prompt: "{{ text }}"',
    "a: 1\nprompt: {{ a }} and {{ b }}\n": "line 2: put a template in quotes",
    "prompt: Say: {{ x }}\n": "line 1: put a template in quotes",
    "a: {% if x %}\n": "line 1: put a template in quotes",
    "a: b: c\n": "line 1: a colon with a space behind it stands inside a value",
    "a: 1\n b: 2\n": "line 2: a colon with a space behind it stands inside a value, or the line begins at another",
    "a:\n\tb: 1\n": "line 2: a tab stands at the beginning of a line: use spaces",
    "a: 1\nb: 'x\nc: 1\n": "line 2: a quote is open until the end of the file",
    "a: [1, 2\nb: 3\n": "line 1: a bracket is open, or a comma is missing: ] closes it",
    "a: @x\n": "line 1: a value cannot begin with @: put the value in quotes",
    "a: !foo x\n": "line 1: nothing here knows !foo",
    "a: b\nno colon here\n": "line 2: the line has a key without a colon",
    'a: "x\\qy"\n': "line 1: \\q means nothing in double quotes",
    "a: 1\n---\nb: 2\n": "line 2: a line --- begins a second document",
    "- a\nb: 1\n": "line 2: the line does not fit to those before it",
    "a: 2026-99-99\n": "a value looks like a date or a number and is none",
    "a: \x01\n": "line 1: a control character stands there",
    "? [a]\n: b\n": "line 1: a key is no text",
    "a: 1\nb: 2\na: 3\n": "line 3: the key 'a' stands twice: remove one of the two",
    "a:\n  - {b: 1, 'b': 2}\n": "line 2: the key 'b' stands twice",
}


@pytest.mark.parametrize(("text", "said"), YAML.items())
def test_yaml_that_cannot_be_read_is_told_with_its_line_and_what_to_do(
    text: str, said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        parse_yaml(text, "s.yaml")
    assert str(caught.value).startswith(f"s.yaml: no valid YAML, {said}")
    assert not FOREIGN.search(str(caught.value))


def test_a_key_of_a_merged_mapping_may_be_written_again() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}\nd: {<<: [*a, *b]}\n"
    found = parse_yaml(text, "s.yaml")
    assert isinstance(found, dict)
    assert found["c"] == {"x": 3, "y": 4}
    assert found["d"] == {"x": 1, "y": 2}


JSON = {
    '{"a": ': "a value is missing, or is no JSON (texts stand in double quotes) at the end",
    "{a: 1}": "a key in double quotes is missing at line 1, column 2, where 'a' stands",
    '{"a" 1}': "a colon is missing behind the key at line 1, column 6, where '1' stands",
    '{"a": 1\n"b": 2}': "a comma or a closing bracket is missing at line 2, column 1, where '\"' stands",
    "[1] x": "something stands behind the end of the value at line 1, column 5, where 'x' stands",
    '"a\tb"': "a text holds a line end, a tab or another control character at line 1, column 3, where '\\t' stands",
    r'"\q"': r"a backslash begins nothing that JSON has: write two at line 1, column 2, where '\\' stands",
    r'"\u12"': r"\u needs four hexadecimal digits at line 1, column 3, where 'u' stands",
    '["a': "a text has no closing quote at line 1, column 2, where '\"' stands",
}


@pytest.mark.parametrize(("text", "expected"), JSON.items())
def test_what_is_no_json_is_told_with_its_place_and_what_is_missing(
    text: str, expected: str
) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    assert json_errors.said(caught.value, has_lines=True) == expected


def test_a_broken_line_is_told_in_our_words() -> None:
    with pytest.raises(ValueError, match=r"^no valid JSON: a key in double quotes is missing"):
        parse_line(b"{a: 1}")


def test_a_broken_json_schema_is_told_in_our_words(tmp_path: Path) -> None:
    (schema := tmp_path / "s.json").write_text('{"a": 1,\n b: 2}')
    typed = ["run", "in.jsonl", "--model", "m", "--prompt", "x", "--out", "o"]
    found = CliRunner().invoke(app, [*typed, "--schema", str(schema)])
    assert "a key in double quotes is missing at line 2, column 2" in found.stderr


FLAGS = {
    ("run", "in.jsonl", "--temperature", "hot"): "'--temperature': must be a number",
    ("run", "in.jsonl", "--slots", "0"): "'--slots': must be at least 1",
    ("run", "in.jsonl", "--slots", "two"): "'--slots': must be a whole number",
    ("completion", "tcsh"): "'shell': 'tcsh' is not one of 'bash', 'zsh', 'fish'",
}


@pytest.mark.parametrize(("typed", "expected"), FLAGS.items())
def test_a_value_of_a_flag_that_does_not_fit_is_told_in_our_words(
    typed: tuple[str, ...], expected: str
) -> None:
    found = CliRunner().invoke(app, typed)
    assert found.exit_code == 2
    assert expected in found.stderr


ERRORS = [
    (errno.ENOENT, "there is no such file or folder"),
    (errno.EACCES, "this user has no permission"),
    (errno.ENOTDIR, "a file lies where its path has a folder"),
    (errno.EISDIR, "it is a folder, not a file"),
    (errno.ENOSPC, "no space is left on the disk"),
    (errno.ENAMETOOLONG, "its name is too long"),
    (errno.EROFS, "the file system is read-only"),
]


@pytest.mark.parametrize(("number", "said"), ERRORS)
def test_an_error_of_the_system_is_told_in_our_words(number: int, said: str) -> None:
    assert told(OSError(number, os.strerror(number), "/a/file")) == said


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        ssl.SSLEOFError(8, "EOF occurred"),
        socket.gaierror(errno.EAGAIN, "Non-recoverable failure in name resolution"),
    ],
    ids=repr,
)
def test_a_number_of_a_library_is_none_of_the_system(error: OSError) -> None:
    assert told(error) == error.strerror


def test_an_error_that_has_no_number_keeps_its_words_on_one_line() -> None:
    assert told(ValueError("a\nb")) == "a b"
    assert told(OSError()) == "OSError"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "cannot be read (there is no such file or folder)"),
        (lambda path: path.mkdir(), "cannot be read (it is a folder, not a file)"),
        (lambda path: path.write_bytes(b"\xff"), "cannot be read (no text in UTF-8, at byte 1)"),
    ],
    ids=["missing", "folder", "bytes"],
)
def test_a_spec_file_that_cannot_be_read(tmp_path: Path, make: Any, said: str) -> None:
    path = tmp_path / "s.yaml"
    make(path)
    with pytest.raises(BadInput) as caught:
        load_spec(path)
    assert str(caught.value) == f"{path}: {said}"


TYPES = {
    "integer": "int64",
    "int": "int64",
    "number": "double",
    "text": "string",
    "datetime": "timestamp[us]",
    "date": "date32",
    "json": "string",
    "list": "list<string>",
    "list[int]": "list<int64>",
    "int[]": "list<int64>",
    "varchar(20)": "string",
}


@pytest.mark.parametrize(("written", "meant"), TYPES.items())
def test_a_type_of_another_language_names_the_one_that_is_meant(written: str, meant: str) -> None:
    with pytest.raises(ValueError, match="is no type") as caught:
        arrow_type(written)
    assert str(caught.value) == f"{written!r} is no type: write {meant}"
    arrow_type(meant)


FILES = {
    "one line": ("in.jsonl", '[{"id": "1"}]\n', "jq -c '.[]' {path} > in-lines.jsonl"),
    "lines": ("in.jsonl", '[\n{"id": "1"}\n]\n', "jq -c '.[]' {path} > in-lines.jsonl"),
    "an object": ("in.jsonl", '{\n"id": "1"\n}\n', "jq -c . {path} > in-lines.jsonl"),
    "json": ("a b.json", '[{"id": "1"}]', "jq -c '.[]' '{path}' > 'a b.jsonl'"),
}


@pytest.mark.parametrize(("name", "content", "command"), FILES.values(), ids=FILES)
def test_a_json_file_in_place_of_lines_names_the_command_that_makes_them(
    tmp_path: Path, name: str, content: str, command: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    spec = parse_spec({**SPEC, "input": {"uri": str(path), "id": "id"}}, "s")
    with pytest.raises(BadInput) as caught:
        survey(spec, Settings())
    assert f"`{command.format(path=path)}` writes" in str(caught.value)


def test_a_packed_file_and_one_of_a_store_have_their_command_too() -> None:
    assert lines_of("s3://b/x.jsonl.gz") == "gzip -dc x.jsonl.gz | jq -c '.[]' > x-lines.jsonl"
    assert lines_of("it's.json") == """jq -c '.[]' 'it'"'"'s.json' > 'it'"'"'s.jsonl'"""


def test_one_thing_is_one_thing() -> None:
    assert [counted(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert [counted_batches(n) for n in (1, 2)] == ["1 batch", "2 batches"]
    assert left_out_rows(1) == "1 row left out by input.where"


ROOT = Path(__file__).parents[2]

PLURAL = re.compile(
    r"^ (?:failed |more |other |further )?"
    r"(?:rows|batches|parts|files|columns|jobs|workers|slots|lines|machines|tokens|requests|answers|samples|"
    r"objects|errors|tables|records|images|generations|children|results)\b(?!/)"
)
"""How the text behind a number goes on that `counted` should write."""


def hand_written(tree: ast.AST) -> Iterator[int]:
    """Lines with a number and a plural noun behind it that no helper wrote. A constant is more than one, and text
    that a call has made is no number.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for number, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(number, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            if PLURAL.match(str(text.value)) and _may_be_one(number):
                yield node.lineno


def _may_be_one(number: ast.FormattedValue) -> bool:
    value, form = number.value, number.format_spec
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in ("len", "sum", "rows_over")
    if isinstance(value, ast.Name) and (value.id.isupper() or value.id in WORDS):
        return False
    if isinstance(value, ast.Attribute) and value.attr in WORDS:
        return False
    return form is None or not ast.unparse(form).rstrip("\"'").endswith("f")


WORDS = ("kind", "root", "what", "_base_url")
"""Names of words, not of numbers: `no failed rows`."""


def test_no_sentence_says_1_rows() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in ("common", "producer", "worker", "nightshift")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_symlink() and "migrations" not in path.parts
        for line in hand_written(ast.parse(path.read_text()))
    ]
    assert not found, "write these with `counted` of common/text.py"


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ('f"{rows:,} rows"', True),
        ('f"{len(files)} files are new"', True),
        ('f"{done.rows} failed rows"', True),
        ('f"{pace:,.1f} rows"', False),
        ('f"{pace} rows/s"', False),
        ('f"{MOST_ROWS:,} rows"', False),
        ('f"{rate(pace)} rows"', False),
    ],
)
def test_the_search_finds_what_it_should(code: str, is_found: bool) -> None:
    assert bool(list(hand_written(ast.parse(code)))) is is_found
