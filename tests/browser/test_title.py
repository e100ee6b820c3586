"""The tab's title counts the jobs that need a person, and changes while the page is open."""

import pytest
from playwright.sync_api import Browser, expect

from nightshift.common.ledger.jobs import jobs
from tests.browser.staged_site import looking, served
from tests.support.staged import an_hour_later, out_of_budget
from tests.support.world import World

pytestmark = pytest.mark.slow


def test_the_title_counts_the_jobs_that_need_a_person_live(browser: Browser, world: World) -> None:
    staged = out_of_budget(world)
    an_hour_later(world)
    with served(world.ledger) as (base, found), looking(browser, base, found["operator"]) as person:
        expect(person.page).to_have_title("(1) Jobs · Nightshift")
        person.page.get_by_role("link", name="1 job needs a person").click()
        expect(person.page.get_by_role("link", name=staged.name)).to_be_visible()
        world.run(jobs.resume, staged.job)
        an_hour_later(world)
        expect(person.page).to_have_title("Jobs · Nightshift")
