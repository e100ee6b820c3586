"""docs/recipes/deadline.md"""

from collections.abc import Callable

import pytest

from tests.support.recipe import Recipe

pytestmark = pytest.mark.slow


def test_a_late_job_says_so_and_what_makes_it_be_on_time(on_fleet: Callable[..., Recipe]) -> None:
    page = on_fleet("deadline", {"gpu-a": "gpu-a", "gpu-b": "gpu-b"})
    page.follow()
    job = page.status("labels")
    assert (job["rows_done"], job["rows_failed"]) == (1600, 0)
    assert job["deadline"]["standing"] == "on time"
