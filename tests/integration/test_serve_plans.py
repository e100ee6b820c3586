"""Plans for keys of `serve`: counted while they read, in threads of their own, and gone when they are refused."""

import asyncio
import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from httpx2 import Response
from starlette.testclient import TestClient

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import archives, job_submit
from nightshift.common.settings import load_settings
from nightshift.producer.serve import access, slow
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import tenants
from nightshift.producer.submit import intake as submitting
from tests.support.arrow_memory import counted
from tests.support.console_site import Site, send
from tests.support.fleet import function_spec
from tests.support.serve import Door
from tests.support.world import World

ROWS = 1_000_000
"""Rows of a small file: 8 MB of lines."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of acme, with a file of many rows and one that unpacks to much."""
    found = tmp_path / "acme"
    found.mkdir()
    (found / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"id":1}\n' * ROWS, 1))
    (found / "long.jsonl.gz").write_bytes(
        gzip.compress(b'{"id": "' + b"x" * 70_000_000 + b'"}\n', 1)
    )
    (found / "few.jsonl.gz").write_bytes(gzip.compress(b'{"id":1}\n' * 30))
    (found / "few.csv").write_text("id\n" + "1\n" * 30)
    return found


@pytest.fixture
def site(ledger: Ledger, folder: Path) -> Site:
    found = Site(ledger, load_settings())
    with ledger.transaction() as connection:
        acme = tenants.get(connection, "acme")
        assert acme is not None
        wanted = replace(acme, roots=(str(folder),), callables=True, max_rows=1000)
        tenants.change(connection, wanted)
    return found


def client(site: Site, who: str = "user") -> TestClient:
    headers = {"authorization": f"Bearer {site.keys[who]}"}
    return TestClient(site.app, headers=headers, raise_server_exceptions=False)


def submitted(site: Site, folder: Path, name: str = "rows.jsonl.gz", **more: Any) -> Response:
    spec = {**function_spec("loud", folder / name, folder / "out"), **more}
    return client(site).post("/api/jobs", json=spec)


def left(folder: Path) -> list[str]:
    """What lies in the folder beside the input."""
    there = (path.relative_to(folder) for path in folder.rglob("*"))
    return sorted(
        str(path) for path in there if not path.name.startswith(("rows.", "long.", "few."))
    )


def code(answer: Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_rows_beyond_the_quota_are_refused_while_they_are_read_and_nothing_stays(
    site: Site, folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "rows.jsonl").write_bytes(b'{"id":1}\n' * 5000)
    (folder / "rows.csv").write_text("id\n" + "1\n" * 5000)
    (folder / "rows.csv.gz").write_bytes(gzip.compress(b"id\n" + b"1\n" * 5000))
    for name in ("rows.jsonl.gz", "rows.jsonl", "rows.csv", "rows.csv.gz"):
        assert code(submitted(site, folder, name)) == (429, "rows_limit_exceeded"), name
        assert left(folder) == [], name
    requests = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}\n' * 5000
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(requests))
    engine = {"backend": "vllm", "model": "a/b"}
    batch = {"input": {"uri": f"{folder}/rows.jsonl.gz", "format": "openai"}}
    answer = submitted(site, folder, task={"kind": "requests"}, engine=engine, **batch)
    assert code(answer) == (429, "rows_limit_exceeded"), answer.text
    assert left(folder) == []
    assert world.ask("SELECT FROM jobs") == []
    assert submitted(site, folder, "few.jsonl.gz").status_code == 201
    world.do("UPDATE tenants SET max_rows = 30")
    assert submitted(site, folder, "few.jsonl.gz").status_code == 200, "the job that is known"
    again = function_spec("loud", folder / "few.csv", folder / "out2")
    assert code(client(site).post("/api/jobs", json=again)) == (429, "rows_limit_exceeded")
    assert not (folder / "out2").exists()


@pytest.mark.slow
def test_what_unpacks_to_far_more_than_its_size_is_refused_however_it_is_asked(
    site: Site, folder: Path, world: World
) -> None:
    world.do("UPDATE tenants SET max_rows = NULL")
    answer = submitted(site, folder, "long.jsonl.gz")
    assert answer.status_code == 400
    assert "unpacks to more than 100 times its size" in answer.json()["error"]["message"]
    spec = {
        "input": f"{folder}/long.jsonl.gz",
        "output": f"{folder}/out",
        "callable": "rules:loud",
    }
    for do in ("preview", "estimate", "pilot", "submit"):
        page = send(site.browser("user"), "/jobs/new", {**spec, "do": do})
        assert (page.status_code, "unpacks to more than" in page.text) == (400, True), do
        assert left(folder) == [], do


def test_parquet_of_one_text_that_many_rows_share_is_refused_before_it_is_read(
    site: Site, folder: Path, world: World
) -> None:
    world.do("UPDATE tenants SET max_rows = NULL")
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["x" * 100_000])
    pq.write_table(pa.table({"text": shared}), folder / "few.parquet", compression="zstd")
    spec = {"input": f"{folder}/few.parquet", "output": f"{folder}/out", "prompt": "{{ text }}"}
    spec |= {"model": "a/b"}
    for do in ("preview", "estimate", "pilot"):
        with counted() as memory:
            page = send(site.browser("user"), "/jobs/new", {**spec, "do": do})
        assert (page.status_code, "unpacks to more than" in page.text) == (400, True), do
        assert left(folder) == [], do
        assert memory.max_memory() < 2**26, do


def test_a_line_that_is_too_long_is_refused_however_it_is_asked(
    site: Site, folder: Path, world: World
) -> None:
    line = b'{"id": "' + b"x" * 17 * 2**20 + b'"}\n'
    (folder / "few.jsonl").write_bytes(b'{"id": "a"}\n' + line)
    spec = {"input": f"{folder}/few.jsonl", "output": f"{folder}/out", "callable": "rules:loud"}
    for do in ("preview", "estimate", "pilot", "submit"):
        page = send(site.browser("user"), "/jobs/new", {**spec, "do": do})
        assert (page.status_code, "longer than 16,777,216 bytes" in page.text) == (400, True), do
    (folder / "few.jsonl").write_bytes(b'{"id": "a"}\n' * 1500 + line)
    world.do("UPDATE tenants SET max_rows = NULL")
    answer = submitted(site, folder, "few.jsonl")
    assert (answer.status_code, "a line of more than 16,777,216" in answer.text) == (400, True)
    assert left(folder) == []


def test_what_a_refused_pilot_has_made_is_gone(site: Site, folder: Path, world: World) -> None:
    world.do("UPDATE tenants SET max_rows = 100")
    spec = {
        "input": f"{folder}/few.jsonl.gz",
        "output": f"{folder}/out",
        "callable": "rules:loud",
        "do": "pilot",
        "pilot_rows": "20",
    }
    world.job(90, tenant="acme")
    assert send(site.browser("user"), "/jobs/new", spec).status_code == 429
    assert [path for path in left(folder) if path != "out-pilot"] == []
    world.do("UPDATE tenants SET max_rows = 110")
    assert send(site.browser("user"), "/jobs/new", spec).status_code == 303


def test_a_plan_that_is_cut_off_by_the_end_of_the_server_leaves_nothing(
    site: Site, folder: Path, world: World
) -> None:
    world.do("UPDATE tenants SET max_rows = NULL")

    class AfterSomeLooks(threading.Event):
        """The server ends while the file is read."""

        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 5

    site.app.state.context.slow.ending = AfterSomeLooks()
    assert code(submitted(site, folder)) == (503, "unavailable")
    assert left(folder) == []


def test_a_refused_submit_leaves_the_copy_that_an_equal_one_uses(
    site: Site, folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = access.refuse_more_rows, []

    def refuse(*given: Any) -> None:
        if not refused:
            refused.append(given)
            raise access.SpentOut("no room", code="rows_limit_exceeded")
        real(*given)

    copies = submitting.reading.copies
    other = submitting.reading.Reading()
    uses = copies.use

    def use(output_uri: str, uri: str) -> None:
        uses(output_uri, uri)
        with submitting.reading.held_to(other):
            uses(output_uri, uri)

    monkeypatch.setattr(access, "refuse_more_rows", refuse)
    monkeypatch.setattr(copies, "use", use)
    assert code(submitted(site, folder, "few.jsonl.gz")) == (429, "rows_limit_exceeded")
    (copy,) = (path for path in folder.rglob("*.copy"))
    assert copies.release(other, stored=False) == {f"{folder}/out": [str(copy)]}, "the last one"
    assert submitted(site, folder, "few.jsonl.gz").status_code == 201
    assert copy.exists()


def test_a_job_whose_copy_vanished_before_it_was_stored_is_not_stored(
    site: Site, folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = job_submit.lock_output

    def vanish(*given: Any) -> None:
        for copy in folder.rglob("*.copy"):
            copy.unlink()
        real(*given)

    monkeypatch.setattr(job_submit, "lock_output", vanish)
    answer = submitted(site, folder, "few.jsonl.gz")
    assert (answer.status_code, "are gone: submit again" in answer.text) == (400, True)
    assert world.ask("SELECT FROM jobs") == []
    monkeypatch.undo()
    assert submitted(site, folder, "few.jsonl.gz").status_code == 201


def test_slow_work_of_a_tenant_is_bounded_and_takes_no_turn_of_another() -> None:
    async def check() -> None:
        work = slow.SlowWork("plans", at_once=4, a_tenant=2, waiting=3)
        go, begun = threading.Event(), threading.Semaphore(0)

        def block() -> str:
            begun.release()
            assert go.wait(60)
            return "done"

        held = [asyncio.create_task(work.run("a", block)) for _ in range(5)]
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        with pytest.raises(ApiError) as refused:
            await work.run("a", block)
        assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "1"})
        assert await work.run("b", lambda: "another") == "another"
        go.set()
        assert await asyncio.gather(*held) == ["done"] * 5
        assert await work.run("a", lambda: "again") == "again"
        work.ending.set()
        with pytest.raises(ApiError) as over:
            await work.run("b", block)
        assert over.value.status == 503

    asyncio.run(check())


@pytest.fixture
def door(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Door]:
    found = Door(tmp_path / "door", database_url, redis_url, {})
    try:
        yield found
    finally:
        found.end()


BURNS = "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}"
"""A template that stays within the budget of its row alone, and with two hundred of its kind does not."""


@pytest.mark.slow
def test_what_reads_an_archive_runs_in_threads_of_its_own(
    site: Site, ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive is read for as long as it is large; whoever asks for other things does not wait."""
    job = submitted(site, folder, "few.csv").json()["job"]
    threads = []

    real = archives.need

    def note(*given: Any) -> Any:
        threads.append(site.app.state.context.reads._threads.borrowed_tokens)
        return real(*given)

    monkeypatch.setattr(archives, "need", note)
    with ledger.transaction() as connection:
        closed = "UPDATE jobs SET state = 'completed', finished_at = now(), closed_at = now()"
        connection.exec_driver_sql(closed)
    api, browser = client(site), site.browser("user")
    for one, place in (
        (api, f"/api/jobs/{job}/errors"),
        (api, f"/api/jobs/{job}/history"),
        (browser, f"/jobs/{job}/failed"),
        (browser, f"/jobs/{job}/rows?which=any"),
    ):
        threads.clear()
        assert one.get(place).status_code == 200, place
        assert threads == [1], place


@pytest.mark.slow
def test_previews_of_many_templates_leave_the_page_to_others_and_end_with_their_server(
    site: Site, folder: Path, door: Door, world: World
) -> None:
    process = door.serve()
    base = f"http://127.0.0.1:{door.port}"
    messages = [{"role": "user", "content": BURNS}] * 200
    (folder / "rows.jsonl").write_bytes(b'{"id":1}\n' * 10)
    spec = function_spec("loud", folder / "rows.jsonl", folder / "out")
    spec |= {
        "task": {"kind": "generate", "messages": messages},
        "engine": {"backend": "vllm", "model": "a/b"},
    }
    form = {"do": "preview", "as": "yaml", "spec": yaml.safe_dump(spec)}
    headers = {"authorization": f"Bearer {site.keys['user']}", "origin": base}
    other = {"authorization": f"Bearer {site.keys['other']}", "origin": base}

    def preview(headers: dict[str, str]) -> int:
        return httpx.post(f"{base}/jobs/new", data=form, headers=headers, timeout=100).status_code

    with ThreadPoolExecutor(5) as threads:
        answers = [threads.submit(preview, headers) for _ in range(4)]
        for _ in range(5):
            assert httpx.get(f"{base}/jobs/new", headers=other, timeout=100).status_code == 200
        small = form | {
            "spec": yaml.safe_dump(spec | {"task": {"kind": "generate", "prompt": "a"}})
        }
        seen = httpx.post(f"{base}/jobs/new", data=small, headers=other, timeout=100)
        assert seen.status_code == 400, "the folder is that of acme"
        assert [answer.result() for answer in answers] == [200] * 4
        last = [threads.submit(preview, headers) for _ in range(4)]
        process.terminate()
        assert process.wait(60) == 0
        assert all(each.exception() or each.result() in (200, 503) for each in last)


@pytest.mark.slow
def test_forty_five_submits_of_a_small_file_of_many_rows_leave_no_byte(
    site: Site, folder: Path, door: Door
) -> None:
    door.serve()
    base = f"http://127.0.0.1:{door.port}"
    acme, other = ({"authorization": f"Bearer {site.keys[who]}"} for who in ("user", "other"))

    def ask(number: int) -> int:
        spec = function_spec(f"n{number}", folder / "rows.jsonl.gz", folder / f"out{number}")
        return httpx.post(f"{base}/api/jobs", json=spec, headers=acme, timeout=100).status_code

    with ThreadPoolExecutor(45) as threads:
        answers = threads.map(ask, range(45))
        for _ in range(20):
            assert httpx.get(f"{base}/v1/files", headers=other, timeout=100).status_code == 200
        assert set(answers) == {429}
    assert left(folder) == []
