"""The part of a page that changes is held to the key each time that an open page asks for it."""

import pytest

from nightshift.common.ledger import Ledger
from tests.support.console_site import Site
from tests.support.world import World

BUTTON = 'name="job"'
"""What the list of jobs has for those who may change them."""


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ("UPDATE api_keys SET revoked_at = now()", 401),
        ("UPDATE api_keys SET expires_at = now() - interval '1 second'", 401),
        ("UPDATE api_keys SET role = 'viewer'", 200),
    ],
)
def test_an_open_page_is_refused_its_next_part_once_its_key_opens_something_else(
    ledger: Ledger, change: str, status: int
) -> None:
    site = Site(ledger)
    World(ledger).job(1, name="one", tenant="acme")
    browser = site.browser("user")
    shown = browser.get("/live/jobs")
    assert shown.status_code == 200
    assert BUTTON in shown.text
    with ledger.transaction() as connection:
        connection.exec_driver_sql(change)
    after = browser.get("/live/jobs", headers={"if-none-match": shown.headers["etag"]})
    assert after.status_code == status
    assert BUTTON not in after.text
    # The browser then loads the whole page, which says why.
    assert ("hx-refresh" in after.headers) is (status == 401)
