"""Parquet files and long lines of a tenant: refused before they take the memory of a server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.formats import reading
from nightshift.common.formats.jsonl import plan as line_scan
from nightshift.common.formats.streams import lines
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.producer.estimate.row_sample import sample_rows
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.submit import survey
from tests.support.arrow_memory import counted

ROWS = 20_000


def spec_over(source: Path, **columns: Any) -> JobSpec:
    return parse_spec(
        {
            "name": "bounded",
            "input": {"uri": str(source), **columns},
            "task": {"kind": "generate", "prompt": "{{ text }}"},
            "engine": {"backend": "openai", "model": "M"},
            "output": {"uri": str(source.parent / "out")},
        },
        "here",
    )


def surveyed(source: Path, **columns: Any) -> tuple[JobSpec, Plan]:
    return survey(spec_over(source, **columns), Settings())


def bounded() -> reading.Reading:
    return reading.Reading(most_ratio=100, most_line_bytes=16 * 2**20)


def shared(*texts: str, rows: int = ROWS) -> pa.Array:
    """Rows that all have the first of these texts, behind one of each; Arrow keeps them a dictionary."""
    numbers = [*range(len(texts)), *[0] * (rows - len(texts))]
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), list(texts))


def written(folder: Path, text: Any, *, as_plain: bool = False, **how: Any) -> Path:
    path = folder / "in.parquet"
    how["store_schema"] = not as_plain
    pq.write_table(pa.table({"text": text}), path, compression="zstd", **how)
    return path


SHORT = [f"{at}" for at in range(5000)]


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (lambda: shared("x" * 100_000), {}),
        # The mean of the dictionary is small, and the rows have its largest text.
        (lambda: shared("x" * 100_000, *SHORT), {}),
        (lambda: shared("x" * 100_000), {"as_plain": True}),
        pytest.param(
            lambda: shared("x" * 100_000, *SHORT), {"as_plain": True}, marks=pytest.mark.slow
        ),
        # Many small row groups, each within what is free.
        (lambda: shared("x" * 100_000), {"row_group_size": 1000}),
        (lambda: pa.array([b"x" * 100_000] * 4000, pa.binary(100_000)), {"row_group_size": 4000}),
        pytest.param(
            lambda: pa.array([f"{'x' * 100_000}{at}" for at in range(3000)]),
            {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
            marks=pytest.mark.slow,
        ),
    ],
    ids=[
        "one text",
        "skewed",
        "plain",
        "plain and skewed",
        "many groups",
        "fixed length",
        "shared beginnings",
    ],
)
def test_parquet_that_unpacks_to_far_more_than_its_size_is_refused(
    tmp_path: Path, text: Callable[[], Any], how: dict[str, Any]
) -> None:
    path = written(tmp_path, text(), **how)
    assert path.stat().st_size < 400_000
    spec, plan = surveyed(path)
    with (
        reading.held_to(bounded()),
        counted() as memory,
        pytest.raises(BadInput, match="unpacks to more than 100 times its size"),
    ):
        sample_rows(plan, spec, 2000, 0)
    assert memory.max_memory() < 900 * 2**20


def test_ordinary_parquet_is_read_as_without_bounds(tmp_path: Path) -> None:
    prompt = "You answer questions of customers. " * 50
    columns = {
        "dictionary": (shared(prompt, "b", "c"), {}),
        "small groups": (pa.array([f"row {at}" for at in range(3000)]), {"row_group_size": 3}),
        "plain": (pa.array([f"{at} {prompt}" for at in range(ROWS)]), {"use_dictionary": False}),
        "nested": (pa.array([[prompt, str(at)] for at in range(5000)]), {}),
        "nulls": (pa.array([None, "a"] * 5000), {}),
    }
    many = [f"{at}" for at in range(200_000)]
    columns["large dictionary"] = (shared(*many, rows=400_000), {})
    columns["large dictionary as plain"] = (columns["large dictionary"][0], {"as_plain": True})
    for name, (text, how) in columns.items():
        spec, plan = surveyed(written(tmp_path, text, **how))
        expected = sample_rows(plan, spec, 300, 0)
        with reading.held_to(bounded()):
            found = sample_rows(plan, spec, 300, 0)
        assert found.table.equals(expected.table), name
        assert found.row_index == expected.row_index, name


def test_without_bounds_a_shared_text_is_read(tmp_path: Path) -> None:
    spec, plan = surveyed(written(tmp_path, shared("x" * 100_000, rows=4000)))
    assert len(sample_rows(plan, spec, 5, 0).row_index) == 5


@pytest.mark.slow
def test_skewed_rows_within_the_bounds_are_read_in_small_pieces(tmp_path: Path) -> None:
    """240 MB by 2,400 rows that share the largest text: more than the cache holds whole."""
    text = shared("x" * 100_000, *SHORT, rows=2400 + len(SHORT))
    spec, plan = surveyed(written(tmp_path, text, as_plain=True))
    with reading.held_to(bounded()), counted() as memory:
        found = sample_rows(plan, spec, 5, 0)
    assert len(found.row_index) == 5
    assert memory.max_memory() < 450 * 2**20


@pytest.mark.parametrize("before", [0, 1500])
def test_a_line_that_is_too_long_is_refused_wherever_it_stands(tmp_path: Path, before: int) -> None:
    path = tmp_path / "in.jsonl"
    row = json.dumps({"text": "a"}) + "\n"
    for size, is_refused in ((16 * 2**20 - 20, False), (16 * 2**20 + 1, True)):
        long = json.dumps({"text": "x" * size}) + "\n"
        path.write_text(row * before + long + row)
        with reading.held_to(bounded()):
            if is_refused:
                with pytest.raises(BadInput, match="16,777,216 bytes"):
                    surveyed(path)
                with pytest.raises(BadInput, match="16,777,216 bytes"):
                    list(lines(str(path)))
                with pytest.raises(BadInput, match=r"in\.jsonl has a line of more than 16,777,216"):
                    line_scan.scan_lines(str(path), 100)
            else:
                assert surveyed(path)[1].rows_total == before + 2
        assert surveyed(path)[1].rows_total == before + 2
