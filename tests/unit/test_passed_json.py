"""JSON that is passed through to the output comes out whole, or its row is `bad_type`."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.common.formats import input_rows, output_schema, part_rows
from nightshift.common.formats.jsonl import examine
from nightshift.common.formats.jsonl.examine import HEAD_ROWS
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.formats.values import to_rows
from nightshift.common.row_errors import Failure
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.producer.submit.arrange.arrange import arranged_plan
from nightshift.producer.submit.planning import planner
from nightshift.producer.submit.planning.schema_merge import with_late_texts
from nightshift.worker.engines.protocol import Answer
from nightshift.worker.rows.results import RowResults, part_table
from tests.support.parts import read_part

HEAD = 5
"""Rows of each file that say here which types its columns have."""

PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.fixture(autouse=True)
def few_rows_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "HEAD_ROWS", HEAD)


def spec_of(folder: Path, form: str, columns: list[str]) -> JobSpec:
    return parse_spec(
        {
            "name": "test",
            "input": {"uri": f"{folder}/in", "id": "id"},
            "task": {"kind": "generate", "prompt": "{{ text }} {{ meta }}"},
            "engine": {"backend": "vllm", "model": "some/model"},
            "output": {"uri": f"{folder}/out", "format": form, "columns": columns},
            "batch": {"rows": 400, "arrange": "prefix"},
        },
        "test",
    )


def passed_through(
    folder: Path,
    form: str = "parquet",
    columns: tuple[str, ...] = ("meta",),
    arranged: bool = False,
) -> list[dict[str, Any]]:
    """The files of `in` through reading, results and parts: the rows of the output in order."""
    spec = spec_of(folder, form, list(columns))
    plan = planner.plan(
        spec.input, spec.batch.rows, columns=spec.read_columns, output_uri=spec.output.uri
    )
    plan = replace(plan, schema=with_late_texts(plan.schema, spec.passed_columns, {"jsonl"}))
    planned = (
        arranged_plan(spec, plan, output_uri=spec.output.uri, cache_tokens=None)
        if arranged
        else plan
    )
    schema = output_schema.output_schema(spec, plan.schema)
    assert schema is not None
    found: list[dict[str, Any]] = []
    for number, batch in enumerate(planned.batches()):
        rows = input_rows.read_rows(
            spec, batch, spec.read_columns, ReadCache(2**24), plan.schema, as_arranged=True
        )
        passed = [part.select(spec.passed_columns) for part in (rows.table, rows.bad_table)]
        results = RowResults([*rows.row_index, *rows.bad], pa.concat_tables(passed))
        results.failures = dict(rows.bad)
        results.outcomes = {index: Answer({"output": "X"}) for index in rows.row_index}
        part = part_table(spec, schema, results)
        uri = f"{folder}/out/part-{number}.{form}"
        part_rows.write_part(uri, part.table, "jsonl" if form == "jsonl" else "parquet", {})
        found += to_rows(read_part(uri, form, schema))
    return sorted(found, key=lambda row: row["row_index"])


def lines(*late: Any, head: Any = ...) -> list[dict[str, Any]]:
    early = {"a": 1} if head is ... else head
    return [
        {"id": at, "text": f"t{at}", "meta": meta}
        for at, meta in enumerate([*[early] * HEAD, *late])
    ]


def write(folder: Path, rows: list[dict[str, Any]], suffix: str = "", name: str = "a") -> None:
    (folder / "in").mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "in" / f"{name}.jsonl{suffix}").write_bytes(PACK[suffix](text))


@pytest.mark.parametrize("arranged", [False, True])
@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_key_that_comes_late_does_not_vanish_from_what_is_passed_through(
    tmp_path: Path, form: str, suffix: str, arranged: bool
) -> None:
    write(tmp_path, lines({"a": 2}, {"a": 3, "newkey": "N"}, {"a": 4}), suffix)
    rows = passed_through(tmp_path, form, arranged=arranged)
    assert [row["row_index"] for row in rows] == list(range(HEAD + 3))
    before, late, behind = rows[HEAD:]
    assert (before["meta"], before["output"], before["error"]) == ({"a": 2}, "X", None)
    assert (behind["meta"], behind["output"], behind["error"]) == ({"a": 4}, "X", None)
    assert (late["meta"], late["output"], late["id"]) == (None, None, HEAD + 1)
    assert late["error"]["kind"] == "bad_type"
    assert "column 'meta' has the key 'newkey'" in late["error"]["message"]
    assert f"line {HEAD + 2}" in late["error"]["message"]


def test_a_key_that_comes_after_a_thousand_rows_does_not_vanish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "HEAD_ROWS", HEAD_ROWS)
    write(
        tmp_path, [row for at in range(201) for row in lines()][:HEAD_ROWS] + lines({"b": 1})[HEAD:]
    )
    *_, last, late = passed_through(tmp_path)
    assert (last["meta"], last["error"]) == ({"a": 1}, None)
    assert (late["meta"], late["error"]["kind"]) == (None, "bad_type")


@pytest.mark.parametrize(
    ("head", "late", "key"),
    [
        ([{"a": 1}], [{"a": 1}, {"a": 1, "n": 2}], "n"),
        ({"x": {"a": 1}}, {"x": {"a": 1, "n": {}}}, "x.n"),
        ({"x": [{"a": [1]}]}, {"x": [{"a": [1]}, {"n": [1]}]}, "x.n"),
        ([[{"a": 1}]], [[{"n": 1}]], "n"),
    ],
)
def test_a_late_key_is_found_at_any_depth(tmp_path: Path, head: Any, late: Any, key: str) -> None:
    write(tmp_path, lines(late, head, head=head))
    found, same = passed_through(tmp_path)[HEAD:]
    assert found["meta"] is None
    assert f"has the key {key!r}" in found["error"]["message"]
    assert (same["meta"], same["error"]) == (head, None)


def test_a_late_key_beside_values_of_another_kind_is_found_too(tmp_path: Path) -> None:
    """Such values make one batch's type a text, so that no key is learned from it."""
    write(tmp_path, lines({"a": 1, "newkey": "N"}, "a text", {"a": 2, "newkey": None}, {}))
    late, text, null, empty = passed_through(tmp_path)[HEAD:]
    assert [row["error"] and row["error"]["kind"] for row in (late, text)] == ["bad_type"] * 2
    assert (null["meta"], null["error"]) == ({"a": 2}, None)
    assert (empty["meta"], empty["error"]) == ({"a": None}, None)


def test_a_key_of_another_file_is_known(tmp_path: Path) -> None:
    write(tmp_path, lines({"a": 2}))
    write(tmp_path, lines({"b": 3}, head={"b": 3}), name="b")
    rows = passed_through(tmp_path)
    assert {row["error"] and row["error"]["kind"] for row in rows} == {None}
    assert rows[-1]["meta"] == {"a": None, "b": 3}


def test_what_only_a_prompt_reads_keeps_keys_that_come_late(tmp_path: Path) -> None:
    write(tmp_path, lines({"a": 3, "newkey": "N"}))
    late = passed_through(tmp_path, columns=())[-1]
    assert (late["output"], late["error"]) == ("X", None)


def test_a_dead_batch_passes_its_values_whole_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path, lines({"a": 2}, {"a": 3, "newkey": "N"}))
    spec = spec_of(tmp_path, "parquet", ["meta"])
    plan = planner.plan(spec.input, 2000, columns=spec.read_columns, output_uri=spec.output.uri)
    (batch,) = plan.batches()
    rows = input_rows.read_rows(spec, batch, spec.passed_columns, ReadCache(0), plan.schema)
    schema = output_schema.output_schema(spec, plan.schema)
    assert schema is not None
    dead = Failure.of(RowErrorKind.BATCH_DEAD, "dead")
    table = part_rows.failures_table(schema, list(batch.rows), rows.whole(), dead)
    assert table.column("meta").to_pylist()[-2:] == [{"a": 2}, None]


@pytest.mark.parametrize(
    ("head", "late", "kept"),
    [
        (5, "007", ...),
        (5, "17", ...),
        (5, 5.0, 5),
        (5, 5.5, ...),
        (5, True, ...),
        (5, 2**63, ...),
        (0.5, "0.5", ...),
        (0.5, 2**53 + 1, ...),
        (0.5, 2, 2.0),
        (True, 1, ...),
        (["a"], "spam", ...),
        (["a"], {"a": 1}, ...),
        ([5], ["5"], ...),
        ({"a": 1}, ["a"], ...),
        ({"a": 1}, {"a": "1"}, ...),
        ("text", 5, "5"),
        (None, [], "[]"),
        (None, "late", "late"),
        ({}, {}, "{}"),
        ({}, {"a": 1}, '{"a": 1}'),
    ],
)
def test_a_late_value_of_another_kind_is_bad_and_never_changed(
    tmp_path: Path, head: Any, late: Any, kept: Any
) -> None:
    """But for texts: a column of texts holds the JSON text of other values, as docs/formats.md says."""
    write(tmp_path, lines(late, head=head))
    found = passed_through(tmp_path)[-1]
    assert found["meta"] == (None if kept is ... else kept)
    assert (found["error"] and found["error"]["kind"]) == ("bad_type" if kept is ... else None)


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (pa.float32(), 1e300, ...),
        (pa.float32(), 0.5, 0.5),
        (pa.float16(), 70000.5, ...),
        (pa.timestamp("us"), 5, ...),
        (pa.duration("us"), 5, ...),
        (pa.decimal128(10, 2), 0.155, ...),
        (pa.decimal128(10, 2), 0.5, 0.5),
        (pa.binary(), "YQ==", b"a"),
        (pa.binary(), "YR==", ...),
        (pa.binary(), "spam!", ...),
        (pa.struct([("a", pa.int64())]), {"a": 1, "n": 1}, ...),
    ],
)
def test_a_value_is_not_changed_to_fit_the_type_of_a_parquet_file(
    tmp_path: Path, kind: pa.DataType, value: Any, kept: Any
) -> None:
    write(tmp_path, [{"id": 0, "text": "t", "meta": value}])
    table = pa.table({"id": [1], "text": ["t"], "meta": pa.nulls(1, kind)})
    pq.write_table(table, tmp_path / "in" / "b.parquet")
    found = passed_through(tmp_path)[0]
    assert found["meta"] == (None if kept is ... else kept)
    assert (found["error"] and found["error"]["kind"]) == ("bad_type" if kept is ... else None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(-1e9, 1e9) | st.text("a1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abn"), inner),
    max_leaves=8,
)


def is_equal(value: Any, got: Any, kind: pa.DataType) -> bool:
    """Whether a JSON value came back. An absent key is as good as a null one; texts may be JSON."""
    if value is None or got is None:
        return value is got
    if pa.types.is_string(kind):
        return bool(
            got == (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        )
    if isinstance(value, dict):
        types = {field.name: field.type for field in kind}
        return isinstance(got, dict) and all(
            is_equal(value.get(name), got.get(name), types.get(name, pa.null()))
            for name in value.keys() | got.keys()
        )
    if isinstance(value, list):
        return len(value) == len(got) and all(
            is_equal(one, two, kind.value_type) for one, two in zip(value, got, strict=True)
        )
    return isinstance(value, bool) == isinstance(got, bool) and bool(value == got)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(early=st.lists(JSON, min_size=1, max_size=3), late=st.lists(JSON, min_size=1, max_size=3))
def test_whatever_is_passed_through_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, early: list[Any], late: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    head = [early[at % len(early)] for at in range(HEAD)]
    rows = [{"id": at, "text": "t", "meta": meta} for at, meta in enumerate([*head, *late])]
    write(folder, rows)
    schema = planner.plan(spec_of(folder, "parquet", ["meta"]).input, 400).schema
    kind = with_late_texts(schema, ["meta"], {"jsonl"}).field("meta").type
    for row, given_row in zip(passed_through(folder), rows, strict=True):
        if row["error"] is None:
            assert is_equal(given_row["meta"], row["meta"], kind), (given_row["meta"], row["meta"])
        else:
            assert (row["error"]["kind"], row["meta"]) == ("bad_type", None)
            assert row["row_index"] >= HEAD
