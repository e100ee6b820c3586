"""Pages of batches, files and rows: who sees them, what their forms do, what they draw."""

import asyncio
import base64
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import job_facts, live_parts
from nightshift.common.states import RowErrorKind
from nightshift.producer.serve.console import drawing, session, values
from nightshift.producer.serve.console import job as job_page
from nightshift.producer.serve.console.page_calls import Visit
from nightshift.producer.serve.ledger import files
from tests.support import batch_site
from tests.support.batch_site import line
from tests.support.console_site import ORIGIN, Site, send
from tests.support.world import World

HOSTILE = "<script>alert(1)</script>"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20


@pytest.fixture
def batches(ledger: Ledger, tmp_path: Path) -> batch_site.Site:
    return batch_site.Site(ledger, tmp_path)


@pytest.fixture
def site(ledger: Ledger, batches: batch_site.Site) -> Site:
    return Site(ledger, batches.settings)


def test_who_sees_a_batch_and_its_files(site: Site, batches: batch_site.Site, world: World) -> None:
    batch = batches.batch(line())
    for who, status in (("viewer", 200), ("user", 200), ("other", 404), ("ops", 200)):
        browser = site.browser(who)
        for path in ("/batches", "/files"):
            page = browser.get(path)
            assert page.status_code == 200
            name = batch.id if path == "/batches" else batch.input_file_id
            assert (f">{name}<" in page.text) is (status == 200), (who, path)
        for path in (f"/batches/{batch.id}", f"/files/{batch.input_file_id}"):
            assert browser.get(path).status_code == status, (who, path)
        if status == 404:
            assert browser.get(f"/live/batches/{batch.id}").status_code == 404
    world.do("UPDATE api_files SET filename = 'rows/of may.csv'")
    got = site.browser("viewer").get(f"/files/{batch.input_file_id}")
    assert got.content == Path(f"{batches.folder}/1.jsonl").read_bytes()
    assert got.headers["content-disposition"] == 'attachment; filename="rows_of may.csv"'
    assert got.headers["x-content-type-options"] == "nosniff"


def test_a_batch_is_cancelled_and_tried_again_from_its_page(
    site: Site, batches: batch_site.Site
) -> None:
    first, second = batches.batch(line()), batches.batch({"no": HOSTILE})
    assert batches.validate()
    assert batches.validate()
    user, viewer, ops = (site.browser(who) for who in ("user", "viewer", "ops"))
    page = ops.get(f"/batches/{second.id}").text
    assert "missing_required_parameter" in page
    assert HOSTILE not in page
    place = f"/batches/{first.id}"
    assert 'value="cancel"' not in viewer.get(place).text
    assert send(viewer, place, {"do": "cancel"}).status_code == 403
    assert user.post(place, data={"do": "cancel"}).status_code == 403, "it names no page"
    assert send(site.browser("other"), place, {"do": "cancel"}).status_code == 404
    assert send(ops, place, {"do": "cancel"}).status_code == 303, "an operator, for another tenant"
    assert batches.seen(first).state == "cancelling"
    batches.sql("UPDATE jobs SET state = 'completed', finished_at = now(), closed_at = now()")
    batches.sql("UPDATE batches SET state = 'dead', failures = 3")
    batches.sql("UPDATE api_batches SET state = 'completed', ends_as = NULL, rows_failed = 1")
    assert 'value="retry"' in user.get(place).text
    assert send(user, place, {"do": "retry"}).status_code == 303
    assert batches.seen(first).state == "in_progress"


def test_a_file_is_deleted_unless_a_batch_reads_it(site: Site, batches: batch_site.Site) -> None:
    batch = batches.batch(line())
    user, place = site.browser("user"), f"/files/{batch.input_file_id}/delete"
    refused = send(user, place, {})
    assert refused.status_code == 409
    assert f"he batch {batch.id} reads the file" in refused.text
    batches.sql("UPDATE api_batches SET state = 'failed'")
    assert send(site.browser("other"), place, {}).status_code == 404
    assert send(site.browser("viewer"), place, {}).status_code == 403
    assert send(user, place, {}).status_code == 303
    assert user.get(f"/files/{batch.input_file_id}").status_code == 404
    assert "deleted, or expired" in user.get(f"/batches/{batch.id}").text


def test_pages_of_batches_and_files_go_by_key(site: Site, batches: batch_site.Site) -> None:
    for _ in range(53):
        batches.batch(line())
    browser = site.browser("viewer")
    for path, name in (("/batches", "batch_"), ("/files", "file-")):
        first = browser.get(path).text
        (before,) = re.findall(r"\?before=(\d+)", first)
        second = browser.get(f"{path}?before={before}").text
        found = [set(re.findall(rf">({name}\d+)<", page)) for page in (first, second)]
        assert [len(each) for each in found] == [50, 3]
        assert not found[0] & found[1]


def failed(world: World, count: int, message: str = "", first: int = 0) -> int:
    """A job with this many failed rows of two kinds."""
    job = world.job(count, name="sad", tenant="acme")
    for row in range(first, first + count):
        kind = RowErrorKind.RENDER_ERROR if row % 2 else RowErrorKind.BAD_RECORD
        world.do(
            "INSERT INTO row_errors (job_id, row_index, batch_id, row_id, kind, message) "
            "SELECT %s, %s, id, %s, %s, %s FROM batches WHERE job_id = %s",
            *(job, row, f"id-{row}", str(kind), message or f"error {row % 3}", job),
        )
    return job


def test_failed_rows_are_filtered_grouped_and_run_again_by_kind(site: Site, world: World) -> None:
    job = failed(world, 230)
    browser = site.browser("user")

    def rows(query: str) -> list[int]:
        page = browser.get(f"/jobs/{job}/failed{query}").text
        return [int(each) for each in re.findall(r'"Row"><a href="[^"]*rows\?row=(\d+)', page)]

    assert rows("") == list(range(100))
    assert rows("?after=199") == list(range(200, 230))
    assert rows("?kind=render_error&after=200") == list(range(201, 230, 2))
    assert rows("?text=ERROR+1") == [row for row in range(230) if row % 3 == 1]
    assert rows("?kind=render_error&text=error+1&after=217") == [223, 229]
    page = browser.get(f"/jobs/{job}/failed?text=error+1&kind=").text
    assert "Run 115 of kind bad_record again" in page
    assert page.count('<div class="says">error #\n') == 2, "by kind"
    assert "Run 115 of kind" not in site.browser("viewer").get(f"/jobs/{job}/failed").text
    assert site.browser("other").get(f"/jobs/{job}/failed").status_code == 404


def test_messages_of_failed_rows_are_text(site: Site, world: World) -> None:
    job = failed(world, 2, message=HOSTILE)
    page = site.browser("viewer").get(f"/jobs/{job}/failed?text=%22%3E{HOSTILE}").text
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


def test_the_latest_leases_are_those_of_the_whole_history(world: World) -> None:
    """`recent` finds by indexes what `attempts` finds by looking at every lease."""
    job = world.job(*[1] * 30)
    outcomes = ["done", "failed", "lost", "released", "split", None]
    world.do(
        "INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, woken, "
        "claimed_at, ended_at, outcome) SELECT id, 1, job_id, 'w-' || seq %% 3, 'e', '1', 'poll', "
        "now() - interval '100 s' + seq * interval '1 s', CASE WHEN seq %% 6 < 5 THEN "
        "now() - interval '50 s' + seq * interval '1 s' END, (%s::text[])[1 + seq %% 6] FROM batches",
        outcomes,
    )
    world.do(
        "UPDATE batches SET state = 'leased', owner = 'w', attempt = 1, lease_expires_at = now() "
        "WHERE seq %% 6 = 5"
    )

    def places(rows: list[Any]) -> list[int]:
        return [row["seq"] for row in rows]

    with world.ledger.transaction() as connection:
        whole = job_facts.attempts(connection, job, limit=None)
        assert places(job_facts.recent(connection, job, 30)) == places(whole)
        assert places(job_facts.recent(connection, job, 8)) == places(whole)[:8]


def test_rows_that_came_last_are_those_of_the_last_batches(world: World) -> None:
    job = world.job(3, 4, 5)
    for seq in (1, 2):
        world.do(
            "UPDATE batches SET state = 'done', part_name = 'p', part_bytes = 1, part_checksum = 'x' "
            "WHERE seq = %s",
            seq,
        )
        world.do(
            "INSERT INTO attempts (batch_id, attempt, job_id, worker_id, engine, engine_version, "
            "woken, claimed_at, ended_at, outcome) SELECT id, 1, job_id, 'w', 'e', '1', 'poll', "
            "now(), now() + seq * interval '1 s', 'done' FROM batches WHERE seq = %s",
            seq,
        )
    with world.ledger.transaction() as connection:
        assert live_parts.latest_rows(connection, job, 7) == [7, 8, 9, 10, 11, 3, 4]
        assert live_parts.latest_rows(connection, job, 2) == [7, 8]


def lease(worker: str, begin: int, end: int | None, outcome: str | None) -> dict[str, Any]:
    zero = datetime(2026, 1, 1, tzinfo=UTC)
    return {
        "worker": worker,
        "host": HOSTILE,
        "slot": 0,
        "claimed_at": zero + timedelta(seconds=begin),
        "ended_at": None if end is None else zero + timedelta(seconds=end),
        "outcome": outcome,
        "seq": 1,
        "attempt": 1,
        "rows": 10,
    }


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (PNG, "png"),
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"RIFF....WEBPVP8", "webp"),
        (b"RIFF....WAVEfmt", None),
        (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", None),
        ("data:image/png;base64," + base64.b64encode(PNG).decode(), "png"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), None),
        ("data:image/png;base64,not!", None),
        ("https://example.com/a.png", None),
        (PNG + b"x" * drawing.MOST_IMAGE_BYTES, None),
        ({"a": 1}, None),
        (None, None),
    ],
)
def test_images_of_rows_are_shown_and_nothing_else_is_one(value: Any, kind: str | None) -> None:
    drawn = drawing.image(value)
    assert (drawn is None) is (kind is None)
    if kind is not None:
        assert f'src="data:image/{kind};base64,' in str(drawn)
    assert "onload" not in str(values.whole(value, "v"))


def test_a_file_of_an_operator_is_listed_with_its_tenant(
    site: Site, batches: batch_site.Site
) -> None:
    batches.batch(line(), tenant="bee")
    page = site.browser("ops").get("/files?purpose=batch").text
    assert "<td>bee</td>" in page
    assert "No file" in site.browser("ops").get("/files?purpose=batch_output").text
    with batches.ledger.transaction() as connection:
        assert files.get(connection, None, "file-1") is not None
        assert files.get(connection, "acme", "file-1") is None


def slot(world: World, job: int, host: str) -> None:
    world.do(
        "INSERT INTO slots (supervisor, slot, host, pool, gpus, state, engine_key, refused) "
        "SELECT %s, 0, %s, 'default', '0', 'ready', engine_key, '{}' FROM jobs WHERE id = %s",
        *(f"s-{host}", host, job),
    )


def test_the_fleet_is_seen_by_all_and_moved_by_operators(site: Site, world: World) -> None:
    job = world.job(3, name="secret-plan", tenant="acme")
    slot(world, job, "gpu-1")
    for who, named in (("viewer", True), ("user", True), ("other", False), ("ops", True)):
        browser = site.browser(who)
        page = browser.get("/fleet").text
        assert "gpu-1" in page
        assert ("secret-plan" in page) is named, who
        assert ("another tenant" in page) is not named
        assert ('value="cordon"' in page) is (who == "ops")
        moved = send(browser, "/fleet", {"do": "cordon", "name": "gpu-1"})
        assert moved.status_code == (303 if who == "ops" else 403)
    assert "cordoned" in site.browser("viewer").get("/fleet").text


def test_changes_of_a_job_are_seen_by_its_tenant_without_the_names_of_operators(
    site: Site, world: World
) -> None:
    job = world.job(3, name="one", tenant="acme")
    user, ops, other = (site.browser(who) for who in ("user", "ops", "other"))
    place = f"/jobs/{job}/move"
    assert send(user, place, {"do": "pause"}).status_code == 303
    assert send(ops, place, {"do": "resume"}).status_code == 303
    assert "Nobody has changed anything yet" in other.get("/audit").text
    for path in ("/audit", f"/jobs/{job}"):
        seen, whole = user.get(path).text, ops.get(path).text
        assert "user (acme)" in seen
        assert "an operator" in seen
        assert "ops (ops)" in whole
        assert "ops (ops)" not in seen


def test_machines_that_could_not_load_an_engine_try_again_when_somebody_says_so(
    site: Site, world: World
) -> None:
    job = world.job(3, name="one", tenant="acme")
    world.do("INSERT INTO reapers (name, host, code_version) VALUES ('r', 'h', 'x')")
    slot(world, job, "gpu-1")
    world.do("UPDATE slots SET state = 'free', engine_key = NULL")
    world.do(
        "INSERT INTO refusals (supervisor, host, failures, pool, engine_key, error, public_error, retry_at) "
        "SELECT 's-gpu-1', 'gpu-1', 1, pool, engine_key, 'no such file: /models/a', 'no such file: a', "
        "now() + interval '10 minutes' FROM jobs"
    )
    user, viewer = site.browser("user"), site.browser("viewer")
    page = user.get(f"/jobs/{job}").text
    assert "no such file: a" in page
    assert "try again now" in page
    assert "try again now" not in viewer.get(f"/jobs/{job}").text
    assert send(viewer, f"/jobs/{job}/load", {}).status_code == 403
    assert send(site.browser("other"), f"/jobs/{job}/load", {}).status_code == 404
    assert send(user, f"/jobs/{job}/load", {}).status_code == 303
    assert world.ask("SELECT FROM refusals") == []
    assert "try again now" not in user.get(f"/jobs/{job}").text


def test_a_live_page_tells_the_state_of_now_and_that_its_job_was_deleted(
    site: Site, world: World
) -> None:
    job = world.job(3, name="one", tenant="acme")
    visit = job_page.live_job
    shown = {}

    def look_at(request: Request) -> Response:
        shown["look"] = visit(Visit(request, session.looker(request), {}))
        return Response("")

    site.app.router.routes.insert(0, Route("/look/{id}", look_at))
    assert site.browser("user").get(f"/look/{job}").status_code == 200
    assert "running" in shown["look"]()
    world.do("UPDATE jobs SET state = 'completed', finished_at = now(), closed_at = now()")
    assert "It is completed" in shown["look"]()
    world.do("DELETE FROM job_counters; DELETE FROM batches; DELETE FROM input_files")
    world.do("DELETE FROM jobs")
    assert "This job was deleted" in shown["look"]()


STRANGE = ["\0", "\ud800", "a" * 5000, "..%2f..%2fetc", "%00", "-1", "9" * 30, "[" * 5000]
"""Words of an address or a form that no browser sends."""


@pytest.mark.slow
def test_whatever_stands_in_an_address_or_a_form_no_page_crashes_and_each_answer_is_bounded(
    site: Site, world: World
) -> None:
    world.job(3, tenant="acme")
    user = site.browser("user")
    routes = [each for each in site.app.routes if isinstance(each, Route)]
    assert len(routes) > 40
    for route in routes:
        for method in {*(route.methods or ())} - {"HEAD"}:
            for word in STRANGE:
                text = quote(word, safe="%", errors="surrogatepass")
                path = re.sub(r"\{\w+(:\w+)?\}", text, route.path)
                for place in (
                    path,
                    re.sub(r"\{\w+(:\w+)?\}", "1", route.path) + f"?{text}={text}&id={text}",
                ):
                    answer = user.request(
                        method,
                        place,
                        content=f"{text}={text}&do={text}",
                        headers={"origin": ORIGIN},
                    )
                    assert answer.status_code < 500, (method, place, answer.text)
                    assert answer.headers["x-content-type-options"] == "nosniff", (method, place)
                    assert "cache-control" in answer.headers


def test_a_form_whose_sender_leaves_is_no_crash(site: Site) -> None:
    """Each form of a page, cut off in the middle by whoever sends the form."""
    key = site.keys["user"]
    headers = [
        (b"host", b"console"),
        (b"origin", ORIGIN.encode()),
        (b"authorization", f"Bearer {key}".encode()),
        (b"content-type", b"application/x-www-form-urlencoded"),
        (b"content-length", b"100"),
    ]
    for route in (each for each in site.app.routes if isinstance(each, Route)):
        if "POST" not in (route.methods or ()):
            continue
        path = re.sub(r"\{\w+(:\w+)?\}", "1", route.path)
        sent: list[Any] = []
        told = iter([{"type": "http.request", "body": b"key=", "more_body": True}])

        async def receive(told: Any = told) -> Any:
            return next(told, {"type": "http.disconnect"})

        async def send_(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("console", 80),
        }
        asyncio.run(site.app(scope, receive, send_))
        assert sent[0]["status"] < 500, path
