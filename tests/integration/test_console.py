"""The pages of `serve`: who sees what, what a form may do, and that nothing of a row is more than text."""

import asyncio
import json
import re
import threading
from decimal import Decimal
from pathlib import Path

import pytest
from starlette.responses import HTMLResponse

from nightshift.common.errors import LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.producer.serve.console import drawing, live, render
from tests.support.console_site import Site, send
from tests.support.fleet import Fleet, function_spec
from tests.support.world import World

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


@pytest.fixture
def site(ledger: Ledger) -> Site:
    return Site(ledger)


def test_a_key_opens_a_session_and_leaving_ends_it(site: Site) -> None:
    browser = site.browser()
    turned = browser.get("/jobs/7")
    assert (turned.status_code, turned.headers["location"]) == (303, "/login?next=/jobs/7")
    wrong = send(browser, "/login", {"key": "nsk-no", "next": "/"})
    assert (wrong.status_code, "opens nothing" in wrong.text) == (401, True)
    opened = send(browser, "/login", {"key": site.keys["viewer"], "next": "//evil.example/"})
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert browser.get("/").status_code == 200
    assert send(browser, "/logout", {}).status_code == 303
    assert browser.get("/").status_code == 303


def test_the_cookie_stays_on_https_where_the_browser_came_by_https(site: Site) -> None:
    given: dict[str, object] = {"key": site.keys["viewer"], "next": "/"}
    for origin, wanted in (("http://console", False), ("https://console", True)):
        opened = send(site.browser(), "/login", given, origin)
        assert opened.status_code == 303
        assert ("secure" in opened.headers["set-cookie"].lower()) is wanted


def test_a_key_that_is_revoked_ends_its_session(site: Site, ledger: Ledger) -> None:
    browser = site.browser("viewer")
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE api_keys SET revoked_at = now()")
    assert browser.get("/").status_code == 303


def test_who_sees_which_job(site: Site, world: World) -> None:
    job = world.job(3, name="secret-plan", tenant="acme")
    for who, status in (("viewer", 200), ("user", 200), ("other", 404), ("ops", 200)):
        browser = site.browser(who)
        assert ("secret-plan" in browser.get("/").text) is (status == 200)
        assert browser.get(f"/jobs/{job}").status_code == status
        assert browser.get(f"/jobs/{job}/rows").status_code == status
        if status == 404:
            assert browser.get(f"/live/jobs/{job}").status_code == 404
        assert browser.get("/fleet").status_code == 200
        assert browser.get("/audit").status_code == 200


def test_a_change_comes_from_a_page_of_the_server_by_somebody_who_may(
    site: Site, world: World
) -> None:
    job = world.job(3, name="one", tenant="acme")
    place = f"/jobs/{job}/move"

    def state() -> str:
        return str(world.ask("SELECT state FROM jobs WHERE id = %s", job)[0].state)

    user, viewer, other = (site.browser(who) for who in ("user", "viewer", "other"))
    assert user.post(place, data={"do": "pause"}).status_code == 403, "it names no page"
    for origin in ("http://evil.example", "null", "http://console.evil.example"):
        assert send(user, place, {"do": "pause"}, origin).status_code == 403
    assert send(viewer, place, {"do": "pause"}).status_code == 403
    assert send(other, place, {"do": "pause"}).status_code == 404
    assert '<button name="do"' not in viewer.get(f"/jobs/{job}").text
    assert 'value="pause"' in user.get(f"/jobs/{job}").text
    assert state() == "running"
    done = send(user, place, {"do": "pause"})
    assert (done.status_code, done.headers["location"], state()) == (303, f"/jobs/{job}", "paused")
    assert send(user, place, {"do": "explode"}).status_code == 400
    paused = user.get(f"/jobs/{job}").text
    assert 'value="resume"' in paused
    assert 'value="pause"' not in paused
    rows = world.ask("SELECT who, action FROM audit_log WHERE job_id = %s", job)
    assert [(row.who, row.action) for row in rows] == [("key 2 user (acme)", "pause")]
    assert "key 2 user (acme)" in site.browser("ops").get("/audit").text


def test_many_jobs_are_paused_at_once_and_the_refusal_names_those_that_cannot(
    site: Site, world: World
) -> None:
    jobs = [world.job(1, name=f"n{number}", tenant="acme") for number in range(3)]
    user = site.browser("user")
    assert send(user, "/jobs", {"do": "cancel", "job": [str(jobs[0])]}).status_code == 303
    refused = send(user, "/jobs", {"do": "pause", "job": [str(job) for job in jobs]})
    assert refused.status_code == 400
    assert f"ob {jobs[0]} is cancelled" in refused.text
    states = [row.state for row in world.ask("SELECT state FROM jobs ORDER BY id")]
    assert states == ["cancelled", "paused", "paused"]


def test_a_job_that_runs_has_a_line_of_its_rates(site: Site, world: World) -> None:
    world.job(4, name="quick", tenant="acme")
    trails = site.app.state.trails
    row = {"job": 1, "status": "running", "rows_per_second": Decimal("3.5")}
    for _ in range(3):
        trails.note(row)
        trails._noted.clear()
    assert drawing.sparkline(trails.note({**row, "rows_per_second": None})).count(",") == 4
    assert site.browser("viewer").get("/").status_code == 200
    assert trails.note({**row, "status": "completed"}) == []


def test_a_page_that_crashes_says_so_and_not_why(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = site.browser("viewer")

    def crash(*_given: object, **_named: object) -> None:
        raise RuntimeError("the inner secret")

    monkeypatch.setattr(render, "fragment", crash)
    monkeypatch.setattr(
        render, "page", lambda *given, **named: HTMLResponse(named["text"], given[1])
    )
    page = browser.get("/")
    assert (page.status_code, page.text) == (500, "the server failed; its log says why")


def test_the_address_holds_the_filter_and_pages_go_by_key(site: Site, world: World) -> None:
    for number in range(60):
        world.job(1, name=f"job-{number:02d}", tenant="acme")
    world.job(1, name="Needle", tenant="acme")
    browser = site.browser("viewer")

    def names(query: str) -> list[str]:
        return re.findall(r'<th scope="row"><a[^>]*>([^<]*)</a>', browser.get(f"/{query}").text)

    assert names("?name=needle") == ["Needle"]
    assert names("?status=failed") == []
    assert '<option value="Needle"></option>' in browser.get("/").text, "the filter completes"
    assert "Needle" not in site.browser("other").get("/").text
    assert "No job fits the filter" in browser.get("/?status=failed").text
    first = names("")
    (after,) = re.findall(r"\?before=([\w-]+)", browser.get("/").text)
    second = names(f"?before={after}")
    assert (len(first), len(second)) == (50, 11)
    assert not set(first) & set(second)


@pytest.mark.slow
def test_what_rows_and_people_write_is_text_and_no_page_loads_from_elsewhere(
    site: Site, tmp_path: Path, database_url: str, redis_url: str, ledger: Ledger
) -> None:
    fleet = Fleet(tmp_path, NIGHTSHIFT_DATABASE_URL=database_url, NIGHTSHIFT_BROKER_URL=redis_url)
    (tmp_path / "in.jsonl").write_text(
        "".join(f"{json.dumps({'id': f'{HOSTILE}{n}', 'text': HOSTILE})}\n" for n in range(3))
    )
    try:
        made = function_spec("hostile", tmp_path / "in.jsonl", tmp_path / "out")
        done = fleet.command("run", str(fleet.spec(made)))
        assert done.returncode == 0, done.stderr
    finally:
        fleet.end()
    with ledger.transaction() as connection:
        connection.exec_driver_sql(
            "INSERT INTO audit_log (who, host, action, job_id, detail) "
            "VALUES (%s, %s, %s, 1, '{}')",
            (HOSTILE,) * 3,
        )
    browser = site.browser("ops")
    for path in (
        "/",
        "/jobs/1",
        "/jobs/1/rows",
        "/jobs/1/rows?which=any",
        "/jobs/1/rows?row=0",
        "/jobs/1/failed?text=%3Cscript%3E",
        "/batches",
        "/files",
        "/fleet",
        "/audit",
        "/?name=%3Cscript%3E",
    ):
        page = browser.get(path)
        assert page.status_code == 200, path
        assert "<script>alert" not in page.text, path
        assert "<img src=x" not in page.text, path
        assert " style=" not in page.text, path
        assert not re.search(r'(?:src|href)="(?!/|\?|#)', page.text), path
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    assert "&lt;SCRIPT&gt;ALERT" in browser.get("/jobs/1/rows").text


def test_vendored_files_are_those_whose_hash_is_written_here() -> None:
    wanted = json.loads((Path(render.__file__).parent / "static" / "hashes.json").read_text())
    assert wanted == {name: render.digest(name) for name in wanted}
    assert {name for name in wanted if name.startswith("htmx")} == {
        path.name for path in (Path(render.__file__).parent / "static").glob("htmx*")
    }


@pytest.mark.parametrize(
    ("done", "failed", "total", "says"),
    [(0, 0, 0, "0 %"), (999, 0, 1000, "99 %"), (0, 1, 1000, "0 %"), (900, 100, 1000, "100 %")],
)
def test_a_bar_is_full_only_when_every_row_is_over(
    done: int, failed: int, total: int, says: str
) -> None:
    drawn = str(drawing.bar(done, failed, total))
    assert f'aria-label="{says}"' in drawn
    widths = [int(each) for each in re.findall(r'rect[^>]* width="(\d+)"', drawn)]
    assert sum(widths[1:]) <= drawing.BAR_WIDTH
    assert not failed or widths[2] >= 2, "one failed row is seen"


def test_browsers_that_ask_for_the_same_view_meanwhile_share_one_look() -> None:
    asked, looks = threading.Semaphore(0), []

    def look() -> str:
        looks.append(1)
        for _ in range(200):
            assert asked.acquire(timeout=60)
        return "<p>"

    async def ask(views: live.Views) -> live.Shown:
        asking = asyncio.ensure_future(views.shown("jobs", lambda: look))
        await asyncio.sleep(0)
        asked.release()
        return await asking

    async def night() -> list[live.Shown]:
        views = live.Views()
        return await asyncio.gather(*(ask(views) for _ in range(200)))

    found = asyncio.run(night())
    assert len(looks) == 1
    assert {part.html for part in found} == {"<p>"}


def test_a_view_is_looked_at_anew_once_its_last_look_is_old_and_its_tag_changes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    html = iter(["one", "one", "two"])

    async def night() -> list[live.Shown]:
        views = live.Views()

        async def shown() -> live.Shown:
            return await views.shown("jobs", lambda: lambda: next(html))

        found = [await shown()]
        monkeypatch.setattr(live, "FRESH_SECONDS", -1.0)
        found += [await shown() for _ in range(2)]
        monkeypatch.setattr(live, "FRESH_SECONDS", 60.0)
        return [*found, await shown()]

    found = asyncio.run(night())
    assert [part.html for part in found] == ["one", "one", "two", "two"]
    assert len({part.etag for part in found}) == 2
    assert found[0].etag == found[1].etag


def test_a_look_that_takes_long_holds_up_no_other_view_and_one_that_failed_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "FRESH_SECONDS", -1.0)
    ends = threading.Event()
    broken = [True]

    def look() -> str:
        if broken.pop():
            raise LedgerUnavailable("no answer")
        return "quick"

    async def night() -> list[str]:
        views = live.Views()
        waiting = asyncio.ensure_future(views.shown("slow", lambda: lambda: str(ends.wait(60))))
        await asyncio.sleep(0)
        with pytest.raises(LedgerUnavailable):
            await views.shown("quick", lambda: look)
        broken.append(False)
        quick = await views.shown("quick", lambda: look)
        assert not waiting.done()
        ends.set()
        return [quick.html, (await waiting).html]

    assert asyncio.run(night()) == ["quick", "True"]


def test_a_page_is_told_that_nothing_has_changed_and_what_has(site: Site, world: World) -> None:
    job = world.job(1, name="before", tenant="acme")
    browser = site.browser("user")
    first = browser.get("/live/jobs")
    assert "before" in first.text
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = browser.get("/live/jobs", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
    site.app.state.views = live.Views()
    with world.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET name = 'after' WHERE id = %s", (job,))
    changed = browser.get("/live/jobs", headers={"if-none-match": tag})
    assert (changed.status_code, "after" in changed.text) == (200, True)


def test_a_form_is_read_for_whoever_may_send_it_and_no_further_than_2_mib(
    site: Site, world: World
) -> None:
    job = world.job(1, name="one", tenant="acme")
    large: dict[str, object] = {"do": "pause", "more": "x" * (3 * 2**20)}
    assert send(site.browser(), f"/jobs/{job}/move", large).status_code == 303
    assert send(site.browser("viewer"), f"/jobs/{job}/move", large).status_code == 403
    assert send(site.browser("user"), f"/jobs/{job}/move", large).status_code == 413
    many: dict[str, object] = {f"f{number}": "" for number in range(2000)}
    assert send(site.browser("user"), f"/jobs/{job}/move", many).status_code == 400


def test_text_that_the_ledger_cannot_keep_is_refused_in_addresses_too(site: Site) -> None:
    browser = site.browser("user")
    assert browser.get("/?name=%00").status_code == 400
    assert browser.get("/batches/%00").status_code == 404


def test_the_next_page_of_jobs_keeps_the_filter(site: Site, world: World) -> None:
    for number in range(51):
        world.job(1, name=f"many-{number}", tenant="acme")
    world.job(1, name="other", tenant="acme")
    page = site.browser("ops").get("/?name=many&tenant=acme").text
    following = re.search(r'href="/(\?[^"]*before=[^"]*)"', page)
    assert following is not None
    assert "name=many" in following[1]
    assert "tenant=acme" in following[1]
    assert "many-0" in site.browser("ops").get("/" + following[1].replace("&amp;", "&")).text
