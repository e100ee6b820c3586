"""Pictures on the page of a job: who sees them, what the live part carries of them, and where a bar leads."""

import threading

import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import pictures
from nightshift.producer.pictures import record
from nightshift.producer.serve.console import job_pictures
from tests.support.console_site import Site
from tests.support.world import World, child_of, make_ready

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def site(ledger: Ledger) -> Site:
    return Site(ledger)


@pytest.fixture(autouse=True)
def no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LAG_SECONDS", 0.0)
    monkeypatch.setattr(record, "REST_TIMES", 0)


def look(world: World) -> None:
    world.do("UPDATE job_pictures SET next_at = now() WHERE next_at IS NOT NULL")
    while record.record(world.ledger, threading.Event()):
        pass


def worked(world: World) -> int:
    """A job with a batch that is done, one that failed and one that runs, on one slot; others wait."""
    job = world.job(10, 20, 30, 40, 50, tenant="acme")
    child = child_of(world.specs[job])
    make_ready(world, child)
    world.commit(world.lease(job, owner=child.id), errors=[1])
    world.fail(world.lease(job, owner=child.id), permanent=True, most=1)
    world.lease(job, owner=child.id)
    return job


def test_pictures_are_seen_by_those_who_see_the_job(site: Site, world: World) -> None:
    job = worked(world)
    look(world)
    for who, status in (("viewer", 200), ("user", 200), ("other", 404), ("ops", 200)):
        browser = site.browser(who)
        for path in ("pictures", "batches/0"):
            assert browser.get(f"/jobs/{job}/{path}").status_code == status, (who, path)
    assert site.browser().get(f"/jobs/{job}/pictures").status_code == 303


def test_a_job_has_its_pictures_on_its_page_and_a_bar_leads_to_its_batch(
    site: Site, world: World
) -> None:
    job = worked(world)
    browser = site.browser("viewer")
    assert "The first picture of this job comes" in browser.get(f"/jobs/{job}").text
    look(world)
    page = browser.get(f"/jobs/{job}").text
    for said in ("of 150 rows 9 done, 21 failed, 30 at work, 90 open", "Rows a second: "):
        assert said in page, said
    assert '<a href="?batch=0" tabindex="-1"><title>batch 0, 10 rows, 1 failed' in page
    assert '<a href="?batch=1" tabindex="-1"><title>batch 1 failed, 0 rows' in page
    assert '<a href="?batch=2" tabindex="-1"><title>batch 2 at work, 30 rows' in page


def test_what_ended_since_the_last_look_is_drawn_from_the_ledger(site: Site, world: World) -> None:
    job = worked(world)
    look(world)
    world.commit(world.lease(job))
    drawn = site.browser("viewer").get(f"/jobs/{job}/pictures").text
    assert "<title>batch 3, 40 rows</title>" in drawn


def test_the_live_part_carries_a_version_and_no_picture(world: World, site: Site) -> None:
    job = worked(world)
    parts = []
    for _ in range(2):
        look(world)
        page = site.browser("viewer").get(f"/jobs/{job}").text
        part, _, rest = page.partition('<div class="pictures"')
        assert f'data-drawn="{world.run(pictures.version, job)}"' in part
        assert 'class="lane' not in part
        assert 'class="lane' in rest
        parts.append(part)
    assert parts[0] != parts[1]


def test_the_page_of_a_batch_shows_its_leases_and_those_of_its_pieces(
    site: Site, world: World
) -> None:
    job = worked(world)
    browser = site.browser("viewer")
    led = browser.get(f"/jobs/{job}?batch=2")
    assert (led.status_code, led.headers["location"]) == (303, f"/jobs/{job}/batches/2")
    assert browser.get(f"/jobs/{job}?batch=//evil").headers["location"].endswith("/%2F%2Fevil")
    first, dead, running, waits = (
        browser.get(f"/jobs/{job}/batches/{seq}").text for seq in range(4)
    )
    assert "committed" in first
    assert f'href="/jobs/{job}/rows?row=0"' in first
    assert ">dead<" in dead.replace("</svg>", "</svg>>")
    assert "under way" in running
    assert "was never claimed" in waits
    for path in ("batches/99", "batches/x", "batches/-1", "batches/1e3"):
        assert browser.get(f"/jobs/{job}/{path}").status_code == 404, path


def test_names_of_hosts_are_text_in_a_picture(site: Site, world: World) -> None:
    job = worked(world)
    world.do("UPDATE workers SET host = %s", HOSTILE)
    look(world)
    page = site.browser("viewer").get(f"/jobs/{job}").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


def test_a_closed_job_whose_picture_is_archived_says_so(site: Site, world: World) -> None:
    job = worked(world)
    look(world)
    world.do("DELETE FROM job_pictures")
    browser = site.browser("viewer")
    page = browser.get(f"/jobs/{job}").text
    assert "first picture" not in page, "closed before reapers drew any"
    assert "archive" not in page
    world.do(
        "INSERT INTO job_archives (job_id, state, files) VALUES (%s, 'archived', '[]')",
        job,
    )
    world.do("DELETE FROM attempts")
    world.do("DELETE FROM batches")
    assert "is in its archive" in browser.get(f"/jobs/{job}").text
    assert "are in its archive" in browser.get(f"/jobs/{job}/batches/1").text


@pytest.mark.parametrize("sizes", [(), (1,)])
def test_a_job_of_no_row_and_of_one_has_a_page(
    site: Site, world: World, sizes: tuple[int, ...]
) -> None:
    job = world.job(*sizes, tenant="acme")
    look(world)
    assert site.browser("viewer").get(f"/jobs/{job}").status_code == 200
    if sizes:
        world.commit(world.lease(job))
        world.finish(job)
        look(world)
        drawn = job_pictures.drawn(world.ledger, job)
        assert "of 1 row 1 done" in drawn
        assert "1 of 1 row is done" in drawn
