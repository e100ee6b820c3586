"""Whoever looks at the first screen of a fleet, without scrolling, sees the job that needs a person, and why."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.staged_site import looking, served
from tests.support.staged import FLEETS, an_hour_later, life
from tests.support.world import World

pytestmark = pytest.mark.slow

HEIGHT = 720

WINDOWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}
"""Windows in which the guide shows pages."""


@pytest.mark.parametrize("wrong", FLEETS)
def test_the_first_screen_names_the_job_that_needs_a_person_and_what_to_do(
    browser: Browser, world: World, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a job that runs again writes into its folder
    staged = FLEETS[wrong](world)
    an_hour_later(world)
    window = {"viewport": {"width": 1280, "height": HEIGHT}}
    with (
        served(world.ledger) as (base, found),
        looking(browser, base, found["operator"], **window) as somebody,
    ):
        page = somebody.page
        expect(page).to_have_title("(1) Jobs · Nightshift")
        first = page.locator("tbody tr").first
        for seen in (
            first.get_by_role("link", name=staged.name),
            first.get_by_text("needs a person"),
            first.get_by_text(staged.why),
            first.get_by_role("button", name=staged.button).first,
        ):
            expect(seen).to_be_in_viewport(ratio=1)
        assert page.get_by_text("needs a person", exact=True).count() == 1
        somebody.picture(f"first-{wrong.replace(' ', '-')}")
        if staged.typed:
            first.get_by_role("spinbutton").fill(staged.typed)
        first.get_by_role("button", name=staged.button).first.click()
        page.wait_for_load_state()
        expect(page.get_by_role("alert")).to_have_text([])
    assert world.ask(staged.mended), "the click has mended it"


def test_pages_of_the_guide_are_drawn(browser: Browser, world: World) -> None:
    FLEETS["no worker"](world)
    an_hour_later(world)
    busy = next(id for id, spec in world.specs.items() if spec.name == "reviews-of-july")
    life(world, busy)
    with served(world.ledger) as (base, found):
        for kind, window in WINDOWS.items():
            with looking(browser, base, found["operator"], **window) as somebody:
                page = somebody.page
                somebody.picture(f"guide-jobs-{kind}")
                somebody.open(f"/jobs/{busy}")
                expect(page.locator("#pictures svg").first).to_be_visible()
                somebody.picture(f"guide-job-{kind}")
                somebody.open("/fleet")
                expect(page.get_by_text("no machine works for this pool")).to_be_visible()
                somebody.picture(f"guide-fleet-{kind}")
