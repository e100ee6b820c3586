"""Pictures on the page of a job: who sees them, what the live part carries of them, and where a bar leads."""

from collections import Counter
from datetime import UTC, datetime

import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import job_leases
from nightshift.producer.serve.console import job_pictures
from nightshift.producer.serve.console.pictures import series
from tests.support.console_site import Site
from tests.support.world import World, child_of, make_ready

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def site(ledger: Ledger) -> Site:
    return Site(ledger)


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
    page = browser.get(f"/jobs/{job}").text
    for said in ("9 of 150 rows are done, 21 failed", "Rows a second: "):
        assert said in page, said
    assert '<a href="?batch=0" tabindex="-1"><title>batch 0, 10 rows, 1 failed' in page
    assert '<a href="?batch=1" tabindex="-1"><title>batch 1 failed, 0 rows, 20 failed' in page
    assert '<a href="?batch=2" tabindex="-1"><title>batch 2 at work, 30 rows' in page


def test_what_ended_is_drawn_at_once(site: Site, world: World) -> None:
    job = worked(world)
    world.commit(world.lease(job))
    drawn = site.browser("viewer").get(f"/jobs/{job}/pictures").text
    assert "<title>batch 3, 40 rows</title>" in drawn
    assert "a sample, one of" not in drawn


def test_the_live_part_carries_a_version_and_no_picture(
    world: World, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = worked(world)
    parts = []
    for version in ("first", "second"):
        monkeypatch.setattr(job_pictures, "version", lambda *times, version=version: version)
        page = site.browser("viewer").get(f"/jobs/{job}").text
        part, _, rest = page.partition('<div class="pictures"')
        assert f'data-drawn="{version}"' in part
        assert 'class="lane' not in part
        assert 'class="lane' in rest
        parts.append(part)
    assert parts[0] != parts[1]


def many(world: World, batches: int) -> int:
    """A job of so many batches of ten rows, each done by one of eight workers in turn, one a second each."""
    job = world.job(*[10] * batches)
    world.do(
        "WITH done AS (UPDATE batches SET state = 'done', attempt = 1, owner = 'w-' || seq %% 8, part_name = "
        "'part-' || seq, part_bytes = 1, part_checksum = 'x' WHERE job_id = %s RETURNING id, seq, job_id) "
        "INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken, "
        "claimed_at, ended_at, outcome, row_count, rows_failed, prompt_tokens, output_tokens) "
        "SELECT id, 1, job_id, 'w-' || seq %% 8, 'mock', '1', 'poll', now() + make_interval(secs => seq / 8), "
        "now() + make_interval(secs => seq / 8 + 1), 'done', 10, 1, 20, 30 FROM done",
        job,
    )
    return job


def test_of_a_long_job_leases_of_the_whole_dataset_and_of_all_workers_are_read(
    world: World,
) -> None:
    job = many(world, 1000)
    every = world.run(job_leases.ended, job, 1000)
    assert (every.stride, len(every.sample), len(every.unsuccessful)) == (1, 1000, 0)
    found = world.run(job_leases.ended, job, 100)
    assert found.stride == 10
    assert 95 <= len(found.sample) <= 100
    places = sorted(lease["seq"] // 10 for lease in found.sample)
    assert len(set(places)) == len(places), "one of each piece"
    # A step that is a multiple of the workers would see one of them alone if each place were the first of its piece.
    by_worker = Counter(lease["worker"] for lease in world.run(job_leases.ended, job, 125).sample)
    assert len(by_worker) == 8
    assert max(by_worker.values()) < 125 / 2


def test_batches_that_ran_often_are_bounded_as_well(world: World) -> None:
    job = many(world, 40)
    world.do(
        "INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken, "
        "claimed_at, ended_at, outcome) "
        "SELECT batch_id, n, job_id, worker_id, engine, engine_version, woken, claimed_at, ended_at, 'lost' "
        "FROM attempts CROSS JOIN generate_series(2, 9) n WHERE job_id = %s",
        job,
    )
    found = world.run(job_leases.ended, job, 100)
    assert found.stride == 4
    assert 0 < len(found.sample) <= 100
    assert len(found.unsuccessful) == 320
    assert len(world.run(job_leases.ended, job, 3).sample) == 3, "of one batch the latest"


def test_rates_of_a_long_job_are_those_of_all_of_its_leases(
    world: World,
) -> None:
    job = many(world, 4000)
    found = world.run(job_leases.ended, job)
    assert found.stride == 2
    times = world.run(job_leases.times, job)
    life = series.points(found.sample, found.stride, times["began"], times["began"] + 500)
    assert life[-1].done == pytest.approx(9 * 4000, rel=0.01)
    assert life[-1].failed == pytest.approx(4000, rel=0.01)
    assert life[-1].output == pytest.approx(30 * 4000, rel=0.01)
    assert "a sample, one of every 2 batches" in job_pictures.drawn(world.ledger, job)


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
    page = site.browser("viewer").get(f"/jobs/{job}").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


def test_an_archived_job_has_no_picture_and_its_page_says_why(site: Site, world: World) -> None:
    job = worked(world)
    browser = site.browser("viewer")
    assert "is archived" not in browser.get(f"/jobs/{job}").text
    world.do("UPDATE jobs SET archived_at = now() WHERE id = %s", job)
    world.do("DELETE FROM attempts")
    world.do("DELETE FROM batches")
    page = browser.get(f"/jobs/{job}").text
    assert "its charts are not available" in page
    assert "Who worked when" not in page
    assert "The job is archived" in browser.get(f"/jobs/{job}/batches/1").text


@pytest.mark.parametrize(
    ("began", "closed", "now", "found"),
    [
        (0, 60, 5000, "1970-01-01T00:01:00+00:00"),
        (None, None, 12, "1"),
        (0, None, 19, "1"),
        (0, None, 20, "2"),
        (0, None, 3600, "360"),
        (0, None, 3659, "60"),
        (0, None, 3661, "61"),
    ],
)
def test_which_pictures_there_are(
    began: int | None, closed: int | None, now: float, found: str
) -> None:
    times = (None if at is None else datetime.fromtimestamp(at, UTC) for at in (began, closed))
    assert job_pictures.version(*times, now) == found


def test_rows_of_a_retry_and_of_dead_batches_are_counted_as_the_ledger_counts_them(
    world: World,
) -> None:
    job = world.job(10, 10, 10)
    world.commit(world.lease(job), errors=range(4))
    world.commit(world.lease(job))
    world.fail(world.lease(job), permanent=True, most=1)

    def counted() -> tuple[int, int]:
        *_, last = series.points(world.run(job_leases.ended, job).sample, 1, 0.0, 1e10)
        return last.done, last.failed

    assert counted() == (16, 14)
    world.finish(job)
    assert counted() == (16, 14), "a part has the errors of the dead batch by now"
    world.retry(job)
    lease = world.lease(job)
    assert len(lease.todo) == 4
    world.commit(lease, errors=[1])
    # Three of the four rows have an answer now, and one failed once more. The dead batch is open again.
    assert counted() == (16 + 3, 4 + 1)


def test_a_job_that_has_begun_has_all_of_its_leases_drawn(world: World) -> None:
    job = world.job(*[10] * 300)
    for lease in [world.lease(job) for _ in range(20)]:
        world.commit(lease)
    found = world.run(job_leases.ended, job, 100)
    assert (found.stride, len(found.sample)) == (1, 20)


@pytest.mark.parametrize("sizes", [(), (1,)])
def test_a_job_of_no_row_and_of_one_has_a_page(
    site: Site, world: World, sizes: tuple[int, ...]
) -> None:
    job = world.job(*sizes, tenant="acme")
    assert site.browser("viewer").get(f"/jobs/{job}").status_code == 200
    if sizes:
        world.commit(world.lease(job))
        world.finish(job)
        drawn = job_pictures.drawn(world.ledger, job)
        assert "1 of 1 row is done" in drawn
