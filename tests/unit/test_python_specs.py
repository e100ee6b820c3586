"""A call in Python becomes the same spec as YAML would."""

import subprocess
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

import nightshift as ns
from nightshift.common.errors import BadInput
from nightshift.common.spec import parse_spec
from nightshift.producer.verify import check_result
from nightshift.specs import JobOptions, spec_of


class Verdict(BaseModel):
    """What the model says of a review."""

    label: str
    score: int


ENGINE = {"backend": "vllm", "model": "M"}
PROMPT = {"kind": "generate", "prompt": "{{ text }}"}
SAID: dict[str, Any] = {"model": "M", "prompt": "{{ text }}"}

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (SAID, {"task": PROMPT, "engine": ENGINE}),
    (
        {
            **SAID,
            "output": ["yes", "no"],
            "id": "id",
            "columns": ["a"],
            "where": "a = 1",
            "limit": 3,
        },
        {
            "task": {**PROMPT, "output": {"choice": ["yes", "no"]}},
            "engine": ENGINE,
            "input": {"id": "id", "where": "a = 1", "limit": 3},
            "output": {"columns": ["a"]},
        },
    ),
    (
        {**SAID, "output": Verdict, "sampling": ns.Sampling(max_tokens=9)},
        {
            "task": {
                **PROMPT,
                "output": {"json_schema": Verdict.model_json_schema()},
                "sampling": {"max_tokens": 9},
            },
            "engine": ENGINE,
        },
    ),
    (
        {**SAID, "output": {"type": "object"}},
        {"task": {**PROMPT, "output": {"json_schema": {"type": "object"}}}, "engine": ENGINE},
    ),
    (
        {**SAID, "output": ns.StructuredOutput(regex="a+")},
        {"task": {**PROMPT, "output": {"regex": "a+"}}, "engine": ENGINE},
    ),
    (
        {**SAID, "system": "Be brief."},
        {
            "task": {
                "kind": "generate",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "{{ text }}"},
                ],
            },
            "engine": ENGINE,
        },
    ),
    (
        {"model": "M", "messages": [ns.Message(role="user", content="{{ text }}")]},
        {
            "task": {"kind": "generate", "messages": [{"role": "user", "content": "{{ text }}"}]},
            "engine": ENGINE,
        },
    ),
    (
        {"function": check_result.__name__ + ":CheckResult", "pool": "cpu", "priority": 3},
        {
            "task": {"kind": "function"},
            "engine": {
                "backend": "function",
                "callable": "nightshift.producer.verify.check_result:CheckResult",
            },
            "pool": "cpu",
            "priority": 3,
        },
    ),
    (
        {"function": parse_spec, "out": ns.OutputSpec(uri="o", format="jsonl")},
        {
            "task": {"kind": "function"},
            "engine": {
                "backend": "function",
                "callable": "nightshift.common.spec.parse:parse_spec",
            },
            "output": {"format": "jsonl"},
        },
    ),
    (
        {
            "task": ns.ClassifyTask(kind="classify", text="{{ text }}"),
            "engine": ns.TransformersEngineSpec(backend="transformers", model="./m"),
            "batch": ns.BatchSpec(rows=8),
            "retry": {"max_attempts": 2},
            "limits": ns.LimitsSpec(max_parallel=4),
        },
        {
            "task": {"kind": "classify", "text": "{{ text }}"},
            "engine": {"backend": "transformers", "model": "./m"},
            "batch": {"rows": 8},
            "retry": {"max_attempts": 2},
            "limits": {"max_parallel": 4},
        },
    ),
]


@pytest.mark.parametrize(("said", "sections"), CASES)
def test_options_are_the_sections_of_a_spec(
    said: Mapping[str, Any], sections: dict[str, Any]
) -> None:
    options = typing.cast(JobOptions, {"out": "o", **said})
    wanted = {
        **sections,
        "name": "rows",
        "input": {"uri": "d/rows.parquet", **sections.get("input", {})},
        "output": {"uri": "o", **sections.get("output", {})},
    }
    found = spec_of("d/rows.parquet", options, stage=None, out=None)
    assert found == parse_spec(wanted, "here")
    assert found.identity == parse_spec(wanted, "here").identity


def test_a_whole_spec_is_taken_as_it_is(tmp_path: Path) -> None:
    written = {
        "name": "n",
        "input": {"uri": "r.parquet"},
        "task": PROMPT,
        "engine": ENGINE,
        "output": {"uri": "o"},
    }
    spec = parse_spec(written, "here")
    (tmp_path / "job.yaml").write_text(spec.model_dump_json(by_alias=True))
    typed = {**written, "engine": ns.VllmEngineSpec(backend="vllm", model="M")}
    for whole in (spec, written, typed, tmp_path / "job.yaml", str(tmp_path / "job.yaml")):
        assert spec_of(whole, {}, stage=None, out=None) == spec
    with pytest.raises(BadInput, match="leave out prompt"):
        spec_of(spec, {"prompt": "{{ text }}"}, stage=None, out=None)
    with pytest.raises(BadInput, match="leave out model, prompt; rows go in as a table"):
        spec_of({"text": ["a"]}, typing.cast(JobOptions, SAID), stage=None, out=None)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"prompt": "{{ text }}"}, "nothing says what runs"),
        ({**SAID, "function": "a:b"}, "model and function says what runs"),
        ({"model": "M"}, "a model needs a prompt"),
        ({"model": "M", "system": "s", "messages": []}, "system goes before a prompt"),
        ({"function": "a:b", "prompt": "p"}, "prompt is for models"),
        ({**SAID, "task": PROMPT}, "prompt stands in the task"),
        ({**SAID, "output": "yes"}, "output is 'yes': give a pydantic model"),
        ({**SAID, "batch": {"rows": 0}}, "batch.rows: must be at least 1"),
        ({**SAID, "columns": "text"}, r"columns=\['text'\]"),
        ({**SAID, "out": None}, "out is missing: name the output directory"),
        ({"function": lambda rows: rows}, "put it into a module beside, such as rules.py"),
        ({"function": spec_of.__class__}, "builtins|module"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_table_is_read(
    said: Mapping[str, Any], words: str
) -> None:
    def rows() -> typing.Iterator[pa.RecordBatch]:
        raise AssertionError("the table was read")
        yield

    stream = pa.RecordBatchReader.from_batches(pa.schema([("text", pa.string())]), rows())
    with pytest.raises(BadInput, match=words):
        spec_of(stream, typing.cast(JobOptions, {"out": "o", **said}), stage="s", out=None)


def test_a_table_for_a_fleet_wants_a_folder_that_workers_can_read() -> None:
    with pytest.raises(BadInput, match='give stage="s3://bucket/staging" or a shared folder'):
        spec_of(pa.table({"text": ["a"]}), {**SAID, "out": "o"}, stage=None, out=None)  # type: ignore[typeddict-item]


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        TypeError, match="'modle' is not one of the options of a job: model, prompt"
    ):
        ns.run("r.parquet", modle="M")  # type: ignore[call-arg]


def test_importing_nightshift_imports_nothing_heavy() -> None:
    heavy = ["pyarrow", "pydantic", "rich", "sqlalchemy", "psycopg", "typer", "celery", "pandas"]
    code = f"import sys, nightshift; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_has_a_place_and_a_docstring() -> None:
    placed = {name: module for module, names in ns.PLACES.items() for name in names}
    assert sorted(placed) == sorted(ns.__all__)
    for name, module in placed.items():
        found = getattr(ns, name)
        assert found.__module__.startswith(module), name
        assert found.__doc__, name
        assert name in dir(ns)
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        ns.Clinet  # type: ignore[attr-defined]  # noqa: B018
