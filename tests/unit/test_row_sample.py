"""The random sample of a dataset: uniform, the same again, and the rows as a job would read them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.producer.estimate.prompt_lengths import measure_prompts
from nightshift.producer.estimate.row_sample import sample_rows
from nightshift.producer.submit.submit import survey


def dataset(folder: Path) -> list[str]:
    """100 rows in Parquet, in row groups of 7, and 60 in JSON lines."""
    folder.mkdir()
    rows = [{"id": f"p{at}", "text": f"parquet {at}"} for at in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=7)
    lines = [{"id": f"j{at}", "text": "x" * at} for at in range(60)]
    (folder / "b.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return [str(row["id"]) for row in [*rows, *lines]]


def spec_over(source: Path, **sections: Any) -> JobSpec:
    return parse_spec(
        {
            "name": "drawn",
            "input": {"uri": str(source), "id": "id"},
            "task": {"kind": "generate", "prompt": "{{ text }}"},
            "engine": {"backend": "openai", "model": "M"},
            "output": {"uri": str(source.parent / "out")},
            "batch": {"rows": 9},
            **sections,
        },
        "here",
    )


@pytest.mark.slow
def test_every_row_is_as_likely_as_any_other_and_is_the_row_of_its_index(tmp_path: Path) -> None:
    ids = dataset(tmp_path / "in")
    spec, plan = survey(spec_over(tmp_path / "in"), Settings())
    seen: Counter[int] = Counter()
    for seed in range(60):
        rows = sample_rows(plan, spec, 40, seed)
        assert len(rows.row_index) == 40
        assert rows.row_index == sorted(set(rows.row_index))
        assert rows.table.column("id").to_pylist() == [ids[at] for at in rows.row_index]
        seen.update(rows.row_index)
    # 60 times a quarter: 15 a row, with a standard deviation of 3.35.
    assert set(seen) == set(range(160))
    assert max(seen.values()) < 15 + 4.5 * 3.35
    halves = sum(count for at, count in seen.items() if at < 100) / seen.total()
    assert halves == pytest.approx(100 / 160, abs=0.03)


def test_the_same_seed_draws_the_same_rows_and_a_small_dataset_is_drawn_whole(
    tmp_path: Path,
) -> None:
    dataset(tmp_path / "in")
    spec, plan = survey(spec_over(tmp_path / "in"), Settings())
    assert sample_rows(plan, spec, 20, 3).row_index == sample_rows(plan, spec, 20, 3).row_index
    assert sample_rows(plan, spec, 20, 3).row_index != sample_rows(plan, spec, 20, 4).row_index
    assert sample_rows(plan, spec, 1_000, 0).row_index == list(range(160))


def test_rows_that_cannot_be_read_or_rendered_are_counted_with_the_first_reason(
    tmp_path: Path,
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(
        '{"id": "a", "text": "four"}\n{"id": null, "text": "b"}\n{"id": "c", "text": null}\n'
    )
    spec, plan = survey(spec_over(source), Settings())
    found = measure_prompts(spec, sample_rows(plan, spec, 10, 0))
    assert (found.sampled, found.refused) == (3, 2)
    assert "rows.jsonl" in found.why
    assert found.lengths.tolist() == [1]
    assert found.is_guess


def test_a_prompt_is_guessed_by_its_characters_where_no_tokenizer_is_known(tmp_path: Path) -> None:
    dataset(tmp_path / "in")
    task = {
        "kind": "generate",
        "messages": [
            {"role": "system", "content": "12345678"},
            {"role": "user", "content": "{{ id }}"},
        ],
    }
    spec, plan = survey(spec_over(tmp_path / "in", task=task), Settings())
    found = measure_prompts(spec, sample_rows(plan, spec, 160, 0))
    assert sorted(set(found.lengths.tolist())) == [3]


@pytest.mark.slow
def test_a_model_that_is_not_there_is_one_sentence_and_a_guess(tmp_path: Path) -> None:
    dataset(tmp_path / "in")
    model = tmp_path / "model"
    model.mkdir()
    engine = {"backend": "vllm", "model": str(model)}
    spec, plan = survey(spec_over(tmp_path / "in", engine=engine), Settings())
    found = measure_prompts(spec, sample_rows(plan, spec, 10, 0))
    assert found.is_guess
    assert len(found.lengths) == 10
    [note] = found.notes
    assert "characters / 4" in note
    assert str(model) in note
    assert "\n" not in note
