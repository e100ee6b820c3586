"""examples/thinking: a real model that thinks, its answers without thoughts, and thoughts beside them."""

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset as ds

from tests.support.example import Example

SETTING = {"is", "not", "aside"}


def test_a_model_thinks_and_its_answers_stand_alone(example: Callable[[str], Example]) -> None:
    thinking = example("thinking")
    thinking.nightshift("run", "job.yaml")
    rows = ds.dataset(thinking.folder / "out", format="parquet").to_table().sort_by("row_index")
    assert rows.num_rows == 40
    assert rows.column("error").null_count == 40
    labels = rows.column("label").to_pylist()
    outputs = rows.column("output").to_pylist()
    assert sum(one == label for one, label in zip(outputs, labels, strict=True)) >= 34
    thoughts = rows.column("reasoning").to_pylist()
    assert all(thought and "think>" not in thought for thought in thoughts)
    words = [part.split()[-1] for thought in thoughts for part in thought.split(", ")]
    assert set(words) <= SETTING
    told = [row["reasoning_tokens"] for row in rows.to_pylist()]
    spent = rows.column("output_tokens").to_pylist()
    assert all(0 < own < whole for own, whole in zip(told, spent, strict=True))

    status = json.loads(thinking.nightshift("status", "thinking", "--json"))
    assert status["reasoning_tokens"] == sum(told)
    assert status["resolved"] == {"thinking": "qwen3", "max_tokens": 512}
    shown = thinking.nightshift("status", "thinking")
    assert f"({sum(told):,} of them thoughts)" in shown
    assert "at most 512 tokens" in shown
    estimate = json.loads(thinking.nightshift("estimate", "job.yaml", "--json"))
    assert estimate["reasoning_tokens_a_row"] == round(sum(told) / 40, 1)
    part = next((thinking.folder / "out").glob("part-*.parquet"))
    metadata = pa.parquet.read_schema(part).metadata
    assert json.loads(metadata[b"nightshift.resolved"])["thinking"] == "qwen3"
    thinking.nightshift("verify", "thinking")


def test_flags_say_how_a_model_thinks_and_how_often_it_answers(
    example: Callable[[str], Example],
) -> None:
    thinking = example("thinking")
    thinking.nightshift(
        *("run", "job.yaml", "--thinking", "auto", "--n", "3", "--temperature", "1"),
        *("--out", "sampled", "--name", "sampled"),
    )
    rows = ds.dataset(thinking.folder / "sampled", format="parquet").to_table()
    assert "output" not in rows.column_names
    assert {len(each) for each in rows.column("outputs").to_pylist()} == {3}
    assert "sampled" in thinking.nightshift("status")
