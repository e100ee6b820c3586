"""Sorted copies that are gone are made again for a retry that comes over HTTP."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.states import JobState
from tests.integration.test_arranged_copies import lose
from tests.integration.test_arranged_jobs import Arranged
from tests.integration.test_retry import moody
from tests.support import console_site

pytestmark = pytest.mark.slow


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Arranged:
    return Arranged(ledger, tmp_path)


def by_api(pages: console_site.Site, job_id: int) -> int:
    key = pages.keys["ops"]
    headers = {"authorization": f"Bearer {key}"}
    return pages.browser().post(f"/api/jobs/{job_id}/retry", headers=headers).status_code


def by_page(pages: console_site.Site, job_id: int) -> int:
    return console_site.send(pages.browser("ops"), f"/jobs/{job_id}/retry", {}).status_code


@pytest.mark.parametrize(("ask", "status"), [(by_api, 200), (by_page, 303)])
def test_a_retry_over_http_makes_the_copy_again_as_the_command_does(
    site: Arranged, ask: Callable[[console_site.Site, int], int], status: int
) -> None:
    site.submit_files(("a.parquet", 25))
    site.work(moody(3))
    lose(site)
    assert ask(console_site.Site(site.ledger), site.job_id) == status
    assert len(site.copies) == 1
    assert site.work(moody()) is JobState.COMPLETED
