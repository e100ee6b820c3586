"""docs/recipes/two-teams.md"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.support.recipe import Recipe
from tests.support.serve import CLIENT_SECONDS, free_port

pytestmark = pytest.mark.slow


def test_each_team_has_its_share_and_its_limits_and_sees_its_own_jobs(
    on_fleet: Callable[..., Recipe], tmp_path: Path
) -> None:
    port, shared = free_port(), tmp_path / "shared"
    page = on_fleet("two-teams", {"/mnt/shared": shared, "8080": port})
    page.environment["NIGHTSHIFT_SERVE_PORT"] = str(port)
    page.follow()
    for folder, rows in (("search", 1000), ("ads", 500)):
        assert ds.dataset(shared / folder / "labelled", format="parquet").count_rows() == rows

    def asked(team: str, path: str, spec: object = None) -> tuple[int, object]:
        key = (page.folder / f"{team}.key").read_text().strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/jobs{path}",
            headers={"Authorization": f"Bearer {key}", "content-type": "application/json"},
            data=None if spec is None else json.dumps(spec).encode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=CLIENT_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    numbers = {name: page.status(name)["job"] for name in ("queries", "banners")}
    assert asked("ads", f"/{numbers['banners']}")[0] == 200
    assert asked("ads", f"/{numbers['queries']}")[0] == 404
    (shared / "ads/large.jsonl").write_text('{"id": "x"}\n' * 1001)
    spec = json.loads((page.folder / "ads.json").read_text())
    large = {
        **spec,
        "input": {"uri": f"{shared}/ads/large.jsonl"},
        "output": {"uri": f"{shared}/ads/2"},
    }
    assert asked("ads", "", large)[0] == 429
    foreign = {**spec, "input": {"uri": f"{shared}/search/queries.jsonl"}}
    assert asked("ads", "", foreign)[0] == 400
