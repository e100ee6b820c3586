"""The schema of specs for editors: what the spec accepts, the schema accepts, and typical mistakes it refuses."""

import copy
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from nightshift.common.errors import BadInput
from nightshift.common.spec import parse_spec
from nightshift.common.spec.editor_schema import editor_schema
from nightshift.producer.cli.app import app

ROOT = Path(__file__).parents[2]

JOB = Draft202012Validator(editor_schema())
JUDGE = Draft202012Validator(editor_schema("judge"))

FIRST_LINE = re.compile(r"# yaml-language-server: \$schema=(\S+)\n")

SPECS = sorted(
    file
    for file in ROOT.glob("examples/*/*.yaml")
    if not file.name.startswith(("models", "phrases", "skypilot"))
)

PLAIN: dict[str, Any] = {
    "name": "reviews",
    "input": {"uri": "reviews.parquet", "id": "review_id"},
    "task": {"kind": "generate", "prompt": "Sentiment of: {{ text }}"},
    "engine": {"backend": "vllm", "model": "m"},
    "output": {"uri": "out/"},
}

FUNCTION = {"task": {"kind": "function"}, "engine": {"backend": "function", "callable": "a:b"}}

FULL: dict[str, Any] = {
    **PLAIN,
    "pool": "gpus",
    "priority": 3,
    "weight": 2,
    "input": {
        "uri": ["a.csv", "b.csv"],
        "format": "csv",
        "delimiter": ";",
        "partitioning": "none",
        "id": "id",
        "unique_id": True,
        "columns": ["text"],
        "where": "stars >= 3",
        "watch": "30s",
    },
    "task": {
        "kind": "generate",
        "dedupe": False,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "{{ text }}"},
                    {"type": "image", "column": "i"},
                ],
            },
        ],
        "thinking": "on",
        "thinking_budget": 20,
        "keep_reasoning": True,
        "chat_template_kwargs": {"effort": {"column": "e"}},
        "sampling": {"temperature": 0.5, "top_k": 4, "n": 3, "stop": ["x"], "seed": 7, "logprobs": 2},
        "sampling_columns": {"seed": "s"},
        "vote": "choice",
        "output": {
            "choice": ["a", "b"],
            "confidence": False,
            "on_invalid": {"retries": 2, "temperature": 1},
        },
        "image_roots": ["images/"],
    },
    "engine": {
        "backend": "vllm",
        "model": "m",
        "revision": "main",
        "args": {"max_model_len": 512},
        "price_per_hour": 1.5,
    },
    "output": {"uri": "out/", "columns": ["text"], "table": {"format": "delta", "uri": "t", "mode": "merge"}},
    "batch": {"rows": 10, "bytes": 1000, "arrange": "none"},
    "retry": {"max_attempts": 2, "row_timeout_seconds": 5},
    "limits": {"max_parallel": 3, "max_failed_fraction": 0.1, "budget": 5, "finish_by": "06:00"},
}  # fmt: skip


def data_of(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def test_the_files_of_the_schemas_are_as_the_code_has_them() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "spec_schemas.py"))["page"]
    for kind, flags in (("job", []), ("judge", ["--judge"])):
        printed = CliRunner().invoke(app, ["schema", *flags])
        assert printed.exit_code == 0
        assert page(kind).read_text() == printed.stdout, "run `make docs`"
        Draft202012Validator.check_schema(json.loads(printed.stdout))


@pytest.mark.parametrize("file", SPECS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_each_example_names_its_schema_in_the_first_line_and_fits_it(file: Path) -> None:
    named = FIRST_LINE.match(file.read_text())
    assert named
    schema = json.loads((file.parent / named[1]).read_text())
    assert list(Draft202012Validator(schema).iter_errors(data_of(file))) == []


def test_every_field_says_what_it_is() -> None:
    for name, section in editor_schema()["$defs"].items():
        for field, found in section["properties"].items():
            assert found.get("description"), f"{name}.{field}"


ACCEPTED: list[dict[str, Any]] = [
    PLAIN,
    FULL,
    {**PLAIN, "task": {**PLAIN["task"], "thinking": True}},
    {**PLAIN, "engine": {**PLAIN["engine"], "args": "auto"}},
    {**PLAIN, **FUNCTION, "output": {"uri": "o", "schema": {"a": "int64"}}},
    {**PLAIN, **FUNCTION, "engine": {"backend": "function", "callable": "rules.été:fé"}},
    {key: each for key, each in PLAIN.items() if key != "task"} | {"input": {"uri": "r", "format": "openai"}},
    {**PLAIN, "task": {"kind": "requests"}, "input": {"uri": "r.jsonl"}},
    {**PLAIN, "priority": "10", "weight": "2.5", "batch": {"rows": " 12 ", "bytes": 1e6}},
    {**PLAIN, "input": {"uri": "a", "id": "b", "unique_id": "yes"}, "priority": True},
    {**PLAIN, "limits": {"budget": None, "finish_by": None, "max_parallel": None}},
]  # fmt: skip


@pytest.mark.parametrize("spec", ACCEPTED)
def test_every_form_that_a_spec_may_have_fits(spec: dict[str, Any]) -> None:
    parse_spec(spec, "here")
    assert list(JOB.iter_errors(spec)) == []


def put(spec: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    *sections, key = place.split(".")
    inner = changed
    for section in sections:
        inner = inner.setdefault(section, {})
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return changed


BROKEN: list[tuple[str, object]] = [
    ("name", None),
    ("name", "two words"),
    ("input", None),
    ("input.uri", None),
    ("input.uri", 7),
    ("input.format", "json"),
    ("input.watch", "soon"),
    ("input.colums", ["text"]),
    ("task", None),
    ("task.kind", "generat"),
    ("task.promt", "x"),
    ("task.thinking", "maybe"),
    ("task.sampling", {"temperature": -1}),
    ("task.sampling", {"max_tokens": "many"}),
    ("task.output", {"choice": "a, b"}),
    ("task.messages", [{"role": "robot", "content": "x"}]),
    ("engine", None),
    ("engine.backend", "sglang"),
    ("engine.model", None),
    ("engine.args", "fast"),
    ("engine.callable", "rules:f"),
    ("output", {}),
    ("output.format", "csv"),
    ("batch.rows", 0),
    ("batch.rows", 1.5),
    ("limits.max_failed_fraction", 2),
    ("priority", "high"),
    ("outputs", {"uri": "out/"}),
]


@pytest.mark.parametrize(("place", "value"), BROKEN)
def test_a_typical_mistake_does_not_fit(place: str, value: object) -> None:
    spec = put(PLAIN, place, value)
    with pytest.raises(BadInput):
        parse_spec(spec, "here")
    assert not JOB.is_valid(spec)


def test_a_judge_has_no_input_and_a_job_has_one() -> None:
    judge = data_of(ROOT / "examples" / "judge" / "judge.yaml")
    assert JUDGE.is_valid(judge)
    assert not JUDGE.is_valid({**judge, "input": {"uri": "a"}})
    assert not JOB.is_valid(judge)


ANY_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2000),
    st.floats(-2, 5, allow_nan=False),
    st.sampled_from(
        ["auto", "on", "yes", "off", "5", " 1_0 ", "1e3", "nan", "-inf", "a:b", "30s", "06:00", "none"]
    ),
    st.text(max_size=4),
    st.lists(st.sampled_from(["a", 1, None]), max_size=2),
    st.dictionaries(st.sampled_from(["a", "uri", "text"]), st.sampled_from(["a", 1, None]), max_size=2),
)  # fmt: skip


def places(value: object, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a spec, and a new key in each section."""
    inner = (
        [*value.items(), ("", None)]
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in inner:
        yield (*before, key)
        yield from places(each, (*before, key))


SEEDS = [
    PLAIN,
    FULL,
    *ACCEPTED,
    *(data_of(file) for file in SPECS if "judge.yaml" not in file.name),
]
AUTO = {"backend": "vllm", "model": "m", "args": "auto"}
FIELDS = sorted({name for each in editor_schema()["$defs"].values() for name in each["properties"]})


@settings(max_examples=300)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(FIELDS), ANY_VALUE), max_size=3),
)
@example(PLAIN, [])
@example({**PLAIN, "engine": {**AUTO, "args_auto": None}}, [])
@example({**PLAIN, "engine": {**AUTO, "args_auto": False}}, [])
@example({**PLAIN, "task": {"kind": "requests"}, "input": {"uri": "r.jsonl", "args": None}}, [])
def test_what_a_spec_may_be_the_schema_accepts(
    seed: dict[str, Any], changes: list[tuple[int, str, object]]
) -> None:
    spec = copy.deepcopy(seed)
    for number, name, value in changes:
        found = list(places(spec))
        *path, key = found[number % len(found)]
        inner: Any = spec
        for step in path:
            inner = inner[step]
        inner[name if key == "" else key] = value
    try:
        parse_spec(spec, "here")
    except BadInput:
        return
    assert [error.message for error in JOB.iter_errors(spec)] == []
