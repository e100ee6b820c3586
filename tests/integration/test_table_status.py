"""What people and machines are told of the table of a job: what is in it, and why a commit is not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import table_commits
from nightshift.common.states import JobState
from nightshift.producer.cli.app import app
from tests.integration.test_retry import moody
from tests.support import console_site
from tests.support.lake import TableSite, opened

pytestmark = pytest.mark.slow

SHOUT = moody()


@pytest.fixture(params=["delta", "iceberg"])
def site(request: pytest.FixtureRequest, ledger: Ledger, tmp_path: Path) -> Iterator[TableSite]:
    with opened(request.param, request, ledger, tmp_path) as found:
        yield found


@pytest.fixture
def said(
    site: TableSite, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[str, dict[str, Any]]]:
    """What `status JOB` and `status JOB --json` say, the first in one line."""
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "300")

    def status() -> tuple[str, dict[str, Any]]:
        asked = ["status", str(site.job_id)]
        text, facts = (
            CliRunner().invoke(app, [*asked, *more], catch_exceptions=False).output
            for more in ([], ["--json"])
        )
        return " ".join(text.split()), json.loads(facts)

    return status


def title(site: TableSite) -> str:
    return str(site.root) if site.kind == "delta" else "lake.ns.answers"


def test_a_job_says_what_of_it_is_in_the_table_and_so_does_its_manifest(
    site: TableSite, said: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    site.start(40)
    text, facts = said()
    assert f"table {title(site)}: nothing of this job before all of its rows are done" in text
    assert (facts["table"]["state"], facts["table"]["rows"]) == (None, 0)
    site.work(SHOUT)
    text, facts = said()
    version = "0" if site.kind == "delta" else str(site.iceberg.current_snapshot().snapshot_id)
    assert f"table {title(site)}: 40 rows of 4 parts since version {version}" in text
    assert facts["table"].pop("at") is not None
    assert facts["table"] == {
        "format": site.kind,
        "name": title(site),
        "mode": "append",
        "version": version,
        "parts": 4,
        "rows": 40,
        "commit": 1,
        "state": "done",
        "reason": None,
    }
    manifest = json.loads((site.root / "moody" / "_manifest.json").read_text())["table"]
    assert (manifest["version"], manifest["rows"]) == (version, 40)


def test_of_a_merge_rows_with_an_answer_are_counted(
    site: TableSite, said: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    site.start(40, of_input={"unique_id": True}, mode="merge")
    site.work(moody(3))
    _, facts = said()
    assert (facts["table"]["rows"], facts["table"]["parts"]) == (36, 4)


def test_a_refused_commit_is_told_with_its_reason(
    site: TableSite, said: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    site.start(20)
    site.run(SHOUT)
    part = next((site.root / "moody").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-10])
    assert site.finish() is JobState.FAILED
    text, facts = said()
    assert f"{title(site)}: 0 rows of 0 parts; commit 1 was refused: " in text
    assert "cannot be read" in facts["table"]["reason"]
    assert facts["table"]["state"] == "refused"


def test_a_commit_under_way_is_told(
    site: TableSite, said: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    site.start(20)
    site.run(SHOUT)
    with site.ledger.transaction() as connection:
        scope = table_commits.Scope(0, table_commits.LAST_SEQ)
        assert table_commits.begin(connection, site.job_id, scope, None) is not None
    text, facts = said()
    assert "0 rows of 0 parts; commit 1 is under way" in text
    assert facts["table"]["state"] == "open"


def test_the_page_of_a_job_says_it(site: TableSite) -> None:
    site.start(20)
    site.work(SHOUT)
    page = console_site.Site(site.ledger, site.settings).browser("ops").get(f"/jobs/{site.job_id}")
    assert f">Table</dt><dd>{title(site)}: 20 rows of 2 parts" in page.text


def test_a_job_without_a_table_says_nothing_of_one(
    site: TableSite, said: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    site.submit()
    text, facts = said()
    assert "table" not in text
    assert "table" not in facts
