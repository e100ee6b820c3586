"""Whoever looks at the first screen of a fleet, without scrolling, sees the job that needs a person, and why."""

import pytest
from playwright.sync_api import Browser

from tests.browser.staged_site import looking, served
from tests.support.staged import FLEETS, told
from tests.support.world import World

pytestmark = pytest.mark.slow

HEIGHT = 720


@pytest.mark.parametrize("wrong", FLEETS)
def test_the_first_screen_names_the_job_that_needs_a_person_and_what_to_do(
    browser: Browser, world: World, wrong: str
) -> None:
    staged = FLEETS[wrong](world)
    told(world)
    with served(world.ledger) as (base, found):
        window = {"viewport": {"width": 1280, "height": HEIGHT}}
        with looking(browser, base, found["operator"], **window) as somebody:
            page = somebody.page
            somebody.picture(f"first-{wrong.replace(' ', '-')}")
            somebody.open(f"/jobs/{staged.job}")
            page.wait_for_timeout(500)
