"""Recipes whose rows a language model answers, each followed with a small model in vLLM on a CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.models import ARGUMENTS, MODEL, THINKING_MODEL, in_flags, in_yaml
from tests.support.recipe import Recipe
from tests.support.seeing import ARGS, make_model

pytestmark = pytest.mark.timeout(1200)

LABELS = {"positive", "neutral", "negative"}

Open = Callable[..., Recipe]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_model_that_thinks_answers_at_once(recipe: Open) -> None:
    page = recipe("without-thinking", {"--model Qwen/Qwen3-8B": in_flags(THINKING_MODEL)})
    page.follow()
    rows = lines(page.folder / "labelled.jsonl")
    assert [row["output"] for row in rows] == ["positive", "negative"]
    assert all(row["output_tokens"] <= 4 and row["error"] is None for row in rows)


def test_rows_of_which_the_model_is_not_sure_are_parted_from_the_others(recipe: Open) -> None:
    page = recipe("label-with-confidence", {"model: Qwen/Qwen3-8B": in_yaml(THINKING_MODEL)})
    page.follow()
    rows = pq.read_table(page.folder / "labels.parquet").to_pylist()
    assert {row["output"] for row in rows} <= LABELS
    assert all(1 / 3 <= row["confidence"] <= 1 for row in rows)
    sure = {row["id"]: row["output"] for row in rows if row["confidence"] >= 0.9}
    assert (sure["r1"], sure["r2"]) == ("positive", "negative")
    doubtful = pq.read_table(page.folder / "doubtful.parquet").column("id").to_pylist()
    assert set(doubtful) == {row["id"] for row in rows} - set(sure)
    assert doubtful


def test_answers_are_typed_columns_that_sql_reads(recipe: Open) -> None:
    page = recipe("extract-columns", {"--model Qwen/Qwen3-4B-Instruct-2507": in_flags(MODEL)})
    page.follow()
    query = f"select parsed.* from '{page.folder}/extracted/part-*.parquet' order by id"
    found = duckdb.sql(query)
    assert [str(each) for each in found.types] == ["VARCHAR", "BIGINT"]
    assert [row[0] for row in found.fetchall()] == ["positive", "negative"]


def test_ten_samples_vote_and_their_share_is_told(recipe: Open) -> None:
    page = recipe("samples-and-a-vote", {"model: Qwen/Qwen3-8B": in_yaml(THINKING_MODEL)})
    page.follow()
    rows = lines(page.folder / "votes.jsonl")
    assert [row["output"] for row in rows[:2]] == ["positive", "negative"]
    for row in rows:
        said = [each["output"] for each in row["outputs"]]
        assert len(said) == 10
        assert row["vote_share"] == pytest.approx(said.count(row["output"]) / 10)
        assert max(map(said.count, LABELS)) == said.count(row["output"])


def test_a_thousand_answers_of_a_job_are_judged(recipe: Open) -> None:
    judge = "model: Qwen/Qwen3-30B-A3B-Instruct-2507"
    page = recipe("judge-a-sample", {judge: in_yaml(MODEL)})
    page.follow()
    rows = ds.dataset(page.folder / "judged", format="parquet").to_table().to_pylist()
    assert len({row["id"] for row in rows}) == 1000
    assert {row["output"] for row in rows} <= {"right", "wrong"}
    assert {row["label"] for row in rows} == {"billing", "product"}


def test_a_notebook_gets_typed_answers_beside_its_rows(recipe: Open) -> None:
    named = 'model="Qwen/Qwen3-4B-Instruct-2507"'
    engine = {"backend": "vllm", "model": str(MODEL), "args": ARGUMENTS}
    page = recipe("notebook", {named: f"engine={engine!r}"})
    page.follow()


def test_images_that_a_column_names_reach_the_model(recipe: Open, tmp_path: Path) -> None:
    model = tmp_path / "seeing"
    make_model(model)
    page = recipe("images", {"model: Qwen/Qwen2.5-VL-7B-Instruct": in_yaml(model, ARGS)})
    page.follow()
    rows = lines(page.folder / "photos.jsonl")
    assert [row["sku"] for row in rows] == ["lamp", "kettle", "desk"]
    assert {row["output"] for row in rows} <= {"fine", "scratched", "broken"}
    assert all(Path(row["photo"]).is_file() and row["error"] is None for row in rows)
