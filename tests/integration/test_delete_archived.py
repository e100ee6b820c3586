"""A job is deleted that was archived, or would be."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nightshift.common.ledger import Ledger
from nightshift.producer.cli.app import app
from tests.integration.test_delete import cut_off, finished, rows_of
from tests.integration.test_retention import age, archive
from tests.integration.test_retry import Site


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Site:
    return Site(ledger, tmp_path)


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_an_archived_job_goes_with_its_archive(
    site: Site, nightshift: Callable[..., Result]
) -> None:
    finished(site)
    age(site)
    assert archive(site) == "archived"
    assert nightshift("delete", "1", "--output").exit_code == 0
    assert not (site.folder / "out").exists()
    assert rows_of(site, 1) == {"audit_log": 2}


def test_a_job_whose_deletion_was_cut_off_is_not_archived(
    site: Site, nightshift: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(site)
    cut_off(nightshift, monkeypatch)
    age(site)
    assert archive(site) == "kept"
    assert nightshift("delete", "1").exit_code == 0
    assert rows_of(site, 1) == {"audit_log": 2}
