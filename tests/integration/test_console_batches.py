"""The page of an API batch says why its rows failed; actions on jobs need some that are picked."""

import json
import re
from pathlib import Path

import pytest

from nightshift.common.ledger import Ledger
from nightshift.producer.serve.ledger import files
from nightshift.producer.serve.ledger.api_batches import ApiBatch
from tests.support import batch_site
from tests.support.batch_site import line
from tests.support.console_site import Site, send

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def batches(ledger: Ledger, tmp_path: Path) -> batch_site.Site:
    return batch_site.Site(ledger, tmp_path)


@pytest.fixture
def site(ledger: Ledger, batches: batch_site.Site) -> Site:
    return Site(ledger, batches.settings)


def with_errors(batches: batch_site.Site, lines: int) -> ApiBatch:
    """A batch that is over, with a file of errors of so many lines."""
    batch, place = batches.batch(line()), batches.folder / "errors"
    assert batches.validate()
    error = {"code": "request_timeout", "message": f"{HOSTILE} after 60 s"}
    custom_id = f"{HOSTILE} half \ud800"
    row = json.dumps({"id": "x", "custom_id": custom_id, "response": None, "error": error}) + "\n"
    place.write_text(row * lines)
    with batches.ledger.transaction() as connection:
        files.receive(connection, "file-err", batch.tenant, str(place))
        size = place.stat().st_size
        given = {"purpose": "batch_output", "filename": "e", "size": size, "expires_after": None}
        files.ready(connection, "file-err", **given)  # type: ignore[arg-type]
    batches.sql(
        "UPDATE api_batches SET state = 'completed', completed_at = now(), error_file_id = 'file-err', "
        f"rows_total = {lines}, rows_failed = {lines}"
    )
    return batch


def test_a_batch_that_is_over_shows_the_first_lines_of_its_errors_by_cause(
    site: Site, batches: batch_site.Site
) -> None:
    batch = with_errors(batches, 5_000)
    page = site.browser("viewer").get(f"/batches/{batch.id}").text
    assert "&lt;script&gt;alert(#)&lt;/script&gt; after # s" in page
    assert "request_timeout" in page
    assert "by cause; of the first 1," in page, "a part of the file is read"
    assert HOSTILE not in page
    assert site.browser("other").get(f"/batches/{batch.id}").status_code == 404


def test_a_file_of_errors_that_cannot_be_read_is_said_and_the_page_is_there(
    site: Site, batches: batch_site.Site
) -> None:
    batch = with_errors(batches, 1)
    (batches.folder / "errors").unlink()
    page = site.browser("viewer").get(f"/batches/{batch.id}")
    assert page.status_code == 200
    assert "The file of errors cannot be read now." in page.text
    batches.sql("UPDATE api_files SET state = 'deleted' WHERE id = 'file-err'")
    assert "cannot be read" not in site.browser("viewer").get(f"/batches/{batch.id}").text


def test_causes_are_said_once_and_of_every_row_where_the_ledger_has_them(
    site: Site, batches: batch_site.Site
) -> None:
    batch = with_errors(batches, 2)
    batches.sql(
        "INSERT INTO row_errors (job_id, row_index, batch_id, row_id, kind, message) "
        "SELECT job_id, 0, id, 'a', 'timeout', 'late' FROM batches"
    )
    page = site.browser("viewer").get(f"/batches/{batch.id}").text
    assert "Its file of errors begins with" in page
    assert page.count("Why rows failed") == 2, "the name of the section, and its heading"
    assert '<td class="wrap">late</td>' in page


def test_a_batch_says_while_it_runs_why_rows_fail(site: Site, batches: batch_site.Site) -> None:
    batch = batches.batch(*(line(str(n)) for n in range(3)))
    assert batches.validate()
    batches.sql(
        "UPDATE batches SET state = 'done', rows_failed = 2, part_name = 'p', part_bytes = 1, "
        "part_checksum = 'x'"
    )
    for row in (0, 2):
        batches.sql(
            "INSERT INTO row_errors (job_id, row_index, batch_id, row_id, kind, message) "
            f"SELECT job_id, {row}, id, '{row}', 'refused', 'no {row}' FROM batches"
        )
    page = site.browser("viewer").get(f"/batches/{batch.id}").text
    assert "in progress" in page
    assert re.search(r'data-label="Rows"><a href="/jobs/1/failed\?group=\w+">2</a>', page)
    assert '<td class="wrap">no #</td>' in page


def test_requests_that_never_ran_are_counted(site: Site, batches: batch_site.Site) -> None:
    batch = batches.batch(line())
    batches.sql(
        "UPDATE api_batches SET state = 'expired', expired_at = now(), rows_total = 9, "
        "rows_completed = 2, rows_failed = 1"
    )
    assert (
        "6 requests had no answer when the batch ended"
        in site.browser("viewer").get(f"/batches/{batch.id}").text
    )


def test_an_action_on_no_job_is_refused_in_a_sentence(site: Site) -> None:
    refused = send(site.browser("user"), "/jobs", {"do": "cancel"})
    assert refused.status_code == 400
    assert "No job is picked" in refused.text
