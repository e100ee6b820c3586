"""docs/recipes/tune-once.md"""

from collections.abc import Callable

import pytest

from tests.support.models import MODEL
from tests.support.recipe import Recipe

pytestmark = pytest.mark.timeout(1800)


def test_a_model_is_tuned_and_the_job_takes_what_was_kept(recipe: Callable[..., Recipe]) -> None:
    page = recipe(
        "tune-once",
        {
            "Qwen/Qwen2.5-1.5B-Instruct": MODEL,
            "max_model_len: 512": "max_model_len: 512, enforce_eager: true",
        },
    )
    said = page.follow()
    assert "times the rows/s" in said
    assert "max_num_seqs=" in said[said.index("Kept: ") :]
