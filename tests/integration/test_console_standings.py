"""The page of jobs and `/api/jobs` by where jobs stand: who comes first, what is counted, what a filter takes."""

import re

import pytest
from starlette.testclient import TestClient

from nightshift.common.ledger.jobs import jobs
from tests.support import staged
from tests.support.console_site import Site
from tests.support.world import World


@pytest.fixture
def reaper(world: World) -> None:
    """A reaper that lives."""
    staged.reaper(world)


@pytest.fixture
def site(world: World) -> Site:
    return Site(world.ledger)


def shown(page: str) -> list[int]:
    return [int(found) for found in re.findall(r'<th scope="row"><a href="/jobs/(\d+)"', page)]


def pages(browser: TestClient, query: str = "") -> list[int]:
    """The jobs of all pages behind one another."""
    found: list[int] = []
    address = f"/{query}"
    while True:
        page = browser.get(address).text
        found += shown(page)
        following = re.search(r'href="/?(\?[^"]*before=[^"]*)"', page)
        if following is None:
            return found
        address = "/" + following[1].replace("&amp;", "&")


def title(page: str) -> str:
    (found,) = re.findall(r"<title>(.*)</title>", page)
    return str(found)


@pytest.mark.usefixtures("reaper")
def test_pages_have_each_job_once_those_that_need_a_person_first_and_the_title_counts_them(
    site: Site, world: World
) -> None:
    made = [world.job(1, name=f"job-{n}", tenant="acme") for n in range(120)]
    needing, others = made[::2], made[1::2]
    world.job(1, name="foreign", tenant="other")
    for id in needing:
        world.run(jobs.pause, id, "limits.budget 5 is spent")
    browser = site.browser("viewer")
    assert pages(browser) == needing[::-1] + others[::-1]
    assert pages(browser, "?needs=person") == needing[::-1]
    assert pages(browser, "?name=job-1&status=waits") == [
        id for id in others[::-1] if str(made.index(id)).startswith("1")
    ]
    first = browser.get("/").text
    assert title(first) == "(60) Jobs · Nightshift"
    assert 'data-needs="60"' in first
    assert "60 jobs need a person" in first
    assert title(site.browser("other").get("/").text) == "Jobs · Nightshift"
    assert shown(browser.get("/?before=needs-nonsense").text) == needing[::-1][:50]


@pytest.mark.usefixtures("reaper")
def test_a_filter_takes_what_people_see_and_the_states_of_older_addresses(
    site: Site, world: World
) -> None:
    waits, paused, spent, failed = (world.job(1, name=f"n{n}", tenant="acme") for n in range(4))
    for id, why in ((paused, None), (spent, "limits.budget 5 is spent")):
        world.run(jobs.pause, id, why)
    world.do(
        "UPDATE jobs SET state = 'failed', reason = 'no such model', finished_at = now(), "
        "closed_at = now() WHERE id = %s",
        failed,
    )
    browser = site.browser("user")
    for query, wanted in (
        ("?status=waits", [waits]),
        ("?status=at+work", []),
        ("?status=paused", [spent, paused]),
        ("?status=failed", [failed]),
        ("?status=running", [waits]),
        ("?needs=person", [failed, spent]),
        ("", [failed, spent, paused, waits]),
    ):
        assert shown(browser.get(f"/{query}").text) == wanted, query
    page = browser.get("/").text
    for said in ("No worker of the pool default is alive.", "limits.budget 5", "no such model"):
        assert said in page


def test_without_a_reaper_the_page_says_so_of_every_open_job(site: Site, world: World) -> None:
    done, paused, waits = (world.job(1, name=f"n{n}", tenant="acme") for n in range(3))
    world.run(jobs.pause, paused)
    world.do("UPDATE jobs SET state = 'completed', closed_at = now() WHERE id = %s", done)
    browser = site.browser("user")
    page = browser.get("/").text
    assert shown(page) == [waits, paused, done]
    assert title(page) == "(1) Jobs · Nightshift"
    assert "No reaper is alive, so nothing is handed out." in page
    for job, needs in ((waits, True), (paused, False), (done, False)):
        assert ("needs a person" in browser.get(f"/jobs/{job}").text) is needs


@pytest.mark.usefixtures("reaper")
def test_a_spec_that_nobody_can_read_takes_no_other_job_from_the_list(
    site: Site, world: World
) -> None:
    odd, other = (world.job(1, name=f"j{n}", tenant="acme") for n in range(2))
    world.do("""UPDATE jobs SET spec = '{"name": "odd", "gone": 1}' WHERE id = %s""", odd)
    staged.an_hour_later(world)
    for page in (site.browser("user").get("/"), site.browser("ops").get("/")):
        assert page.status_code == 200
        assert shown(page.text) == [other, odd]
        assert title(page.text) == "(2) Jobs · Nightshift"


def test_a_list_goes_on_behind_jobs_that_stand_elsewhere(site: Site, world: World) -> None:
    staged.reaper(world)
    busy = [world.job(1, name=f"busy{n}", tenant="acme") for n in range(2)]
    staged.machine(world, "gpu-1", busy[0], slots=1)
    for job in busy:
        world.admit(job)
        assert world.claim(job, owner="gpu-1/0", most=1)
    for n in range(5):
        world.job(1, name=f"waits{n}", tenant="acme")
    staged.an_hour_later(world)
    api = TestClient(site.app, headers={"authorization": f"Bearer {site.keys['viewer']}"})
    found, after = [], ""
    while True:
        page = api.get(f"/api/jobs?standing=at%20work&limit=1{after}").json()
        found += [each["job"] for each in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={found[-1]}"
    assert found == busy[::-1]


@pytest.mark.usefixtures("reaper")
def test_the_api_lists_by_where_jobs_stand_and_tells_guests_no_names(
    site: Site, world: World
) -> None:
    mine = world.job(1, name="mine", tenant="acme")
    world.job(1, name="secret", tenant="other", priority=9)
    spent = world.job(1, name="spent", tenant="acme")
    world.run(jobs.pause, spent, "limits.budget 5 is spent")
    staged.machine(world, "gpu-1", mine)
    api = TestClient(site.app)

    def listed(query: str, who: str = "viewer") -> list[dict[str, object]]:
        bearer = {"authorization": f"Bearer {site.keys[who]}"}
        answer = api.get(f"/api/jobs{query}", headers=bearer)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, object]] = answer.json()["data"]
        return found

    [waiting] = listed("?standing=waits")
    standing = waiting["standing"]
    assert isinstance(standing, dict)
    assert (waiting["job"], standing["word"], standing["kind"]) == (mine, "waits", "others_first")
    assert waiting["waiting"] == standing["sentence"]
    assert "secret" not in str(waiting)
    assert "(secret) goes first" in str(listed("?standing=waits", "ops"))
    assert [each["job"] for each in listed("?needs_person=true")] == [spent]
    assert [each["job"] for each in listed("?standing=paused&needs_person=true")] == [spent]
    assert listed("?standing=done") == []
    bearer = {"authorization": f"Bearer {site.keys['viewer']}"}
    one = api.get(f"/api/jobs/{mine}", headers=bearer).json()
    assert one["standing"] == standing
    assert api.get("/api/jobs?standing=bored", headers=bearer).status_code == 400
