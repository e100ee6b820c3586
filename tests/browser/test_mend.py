"""A person mends by clicks what the page of a job says is wrong."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Person, ended, key, submit
from tests.browser.test_console import LONG, no_violations
from tests.support.serve import Door

pytestmark = pytest.mark.slow


def test_a_job_moves_to_workers_and_a_group_of_its_errors_runs_again(
    site: Door, person: Callable[..., Person]
) -> None:
    site.worker("--pool", "default")
    secret = key(site, "ops", "operator")
    job = submit(site, "tickets", "picky", pool="lonely")

    def ask(statement: str, *values: Any) -> None:
        with psycopg.connect(site.environment["NIGHTSHIFT_DATABASE_URL"]) as connection:
            connection.execute(statement, values)

    somebody = person(viewport={"width": 1280, "height": 900})
    somebody.login(secret)
    page = somebody.page
    page.get_by_role("link", name="tickets").click()
    why = page.get_by_label("Why")
    expect(why).to_contain_text("no worker of the pool lonely is alive", ignore_case=True)

    ask(
        "UPDATE jobs SET state = 'paused', reason = '1.20 is spent, which reaches limits.budget 1', "
        "spec = jsonb_set(spec, '{engine,price_per_hour}', '2') WHERE id = %s",
        job,
    )
    budget = why.get_by_label("New budget")
    budget.press_sequentially("3")
    ask("UPDATE jobs SET remark = 'a frame comes' WHERE id = %s", job)
    expect(why).to_contain_text("a frame comes", ignore_case=True)
    page.keyboard.type("5")
    expect(budget).to_have_value("35")
    somebody.picture("mend-1-budget")
    no_violations(page, "a budget")
    why.get_by_role("button", name="Resume with this budget").click()
    expect(page.get_by_label("Who changed what")).to_contain_text("budget none -> 35")

    page.get_by_text("Change pool, priority").click()
    page.get_by_label("Priority").fill("5")
    page.get_by_label("Finish by").fill("8h")
    ask(
        "UPDATE jobs SET priority = 2, spec = jsonb_set(spec, '{priority}', '2') WHERE id = %s", job
    )
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("has priority 2 by now")
    page.get_by_text("Change pool, priority").click()
    page.get_by_label("Priority").fill("5")
    page.get_by_label("Finish by").fill("8h")
    no_violations(page, "the form")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_label("Who changed what")).to_contain_text("priority 2 -> 5")

    why.get_by_role("button", name="Move to pool default").click()
    expect(why).to_contain_text("6 of 60 rows failed", timeout=LONG)
    errors = page.get_by_label("Failed rows")
    expect(errors).to_contain_text("a seven")
    somebody.picture("mend-2-errors")
    no_violations(page, "errors")
    (site.folder / "mended").touch()
    errors.get_by_role("button", name="Run these again").click()
    expect(why).to_contain_text("every row has an answer", timeout=LONG)
    ended(site, job)
    refused = [each for each in somebody.complaints if "status of 409" in each]
    assert somebody.complaints == refused, "the page that says what has changed"
    somebody.complaints.clear()
