"""Results of a job as a file from its page: what is in the file, who gets it, and how a transfer ends."""

import csv
import io
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
import uvicorn

from nightshift.common.errors import SourceChanged
from nightshift.common.ledger import Connection, Ledger
from nightshift.common.settings import load_settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer import closed_jobs
from nightshift.producer.results import download
from nightshift.producer.results.collect import collect
from nightshift.producer.serve import connections, downloads, server
from nightshift.producer.serve.slow import STORE, SlowWork
from nightshift.producer.submit import submit as intake
from nightshift.worker.engines.function.host import Rows
from tests.integration.test_retention import age, archive
from tests.integration.test_retry import Function, moody
from tests.integration.test_retry import Site as JobSite
from tests.support import arrow_memory, console_site
from tests.support.fleet import function_spec, wait_until

ODD = "one\u2028two\u2029three\x85four\\u2028é"


def giving(text: str) -> Function:
    def function(rows: Rows) -> Sequence[dict[str, Any]]:
        return [{"loud": text} for _ in rows]

    return function


@pytest.fixture
def made(ledger: Ledger, tmp_path: Path) -> JobSite:
    return JobSite(ledger, tmp_path)


@pytest.fixture
def site(ledger: Ledger) -> console_site.Site:
    return console_site.Site(ledger)


def submit(made: JobSite, rows: int = 40, batch: int = 10, form: str = "parquet") -> str:
    """A job of acme; gives the address of its results."""
    made.submit(form, rows, batch)
    with made.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET tenant = 'acme'")
    return f"/jobs/{made.job_id}/results"


def parts(made: JobSite) -> list[Path]:
    return sorted((made.folder / "out").glob("part-*"))


def limited(site: console_site.Site, at_once: int) -> None:
    """A tenant may take so many results at once."""
    turns = SlowWork("downloads of results", at_once=math.inf, a_tenant=at_once, waiting=0)
    site.app.state.context = replace(site.app.state.context, downloads=turns)


@contextmanager
def served(site: console_site.Site, idle_seconds: float | None = None) -> Iterator[int]:
    """The pages at a port of this machine; clients are cut off as by `nightshift serve` after so much time."""
    if idle_seconds is None:
        with server.beside(site.app, 0) as port:
            yield port
        return
    settings = load_settings().model_copy(update={"serve_idle_seconds": idle_seconds})
    config = uvicorn.Config(
        site.app,
        http=connections.protocol(settings),
        ws="none",
        log_config=None,
        log_level="critical",
        timeout_graceful_shutdown=0,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            running.should_exit = True
            thread.join(60)


def asked(
    site: console_site.Site, stack: ExitStack, port: int, path: str, version: str = "1.1"
) -> socket.socket:
    """A connection that has asked for this as the viewer of acme, and takes nothing yet. Its buffer is small."""
    found = socket.socket()
    stack.enter_context(closing(found))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.settimeout(60)
    found.connect(("127.0.0.1", port))
    key = site.keys["viewer"]
    head = f"GET {path} HTTP/{version}\r\nhost: a\r\nauthorization: Bearer {key}\r\n\r\n"
    found.sendall(head.encode())
    return found


def everything(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    found = bytearray()
    while data := connection.recv(2**16):
        found += data
    return bytes(found)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_the_file_is_the_one_that_collect_writes_whatever_the_parts_are(
    made: JobSite, site: console_site.Site, form: str
) -> None:
    place = submit(made, form=form)
    assert made.work(moody(7)) is JobState.COMPLETED
    browser = site.browser("viewer")
    for kind in ("jsonl", "csv", "parquet"):
        target = made.folder / f"all.{kind}"
        assert collect(made.ledger, made.job, str(target)) == 40
        got = browser.get(f"{place}?format={kind}")
        assert got.status_code == 200, got.text
        if kind == "parquet":
            assert pq.read_table(io.BytesIO(got.content)).equals(pq.read_table(target))
        else:
            assert got.content == target.read_bytes()
        assert got.headers["content-disposition"] == f'attachment; filename="moody-1.{kind}"'
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["cache-control"] == "no-store"
        assert got.headers["x-nightshift-rows"] == got.headers["x-nightshift-rows-total"] == "40"
    rows = [json.loads(line) for line in browser.get(place).text.splitlines()]
    assert [row["row_index"] for row in rows] == list(range(40))
    assert {row["row_index"] for row in rows if row["error"]} == {7, 17, 27, 37}


def test_a_cell_of_csv_is_the_value_and_nested_values_are_json(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made, rows=10)
    made.work(giving("=1+1"))
    rows = list(csv.DictReader(io.StringIO(site.browser("viewer").get(f"{place}?format=csv").text)))
    assert {row["loud"] for row in rows} == {"=1+1"}


def test_lines_of_the_file_are_the_rows_for_every_reader_of_lines(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made, rows=10)
    made.work(giving(ODD))
    got = site.browser("viewer").get(place)
    for lines in (got.text.splitlines(), got.content.split(b"\n")[:-1], list(got.iter_lines())):
        assert [json.loads(line)["loud"] for line in lines] == [ODD] * 10


def test_who_gets_results(made: JobSite, site: console_site.Site) -> None:
    place = submit(made)
    made.work(moody())
    statuses = {"viewer": 200, "user": 200, "other": 404, "ops": 200}
    for who, status in statuses.items():
        got = site.browser(who).get(place)
        assert (got.status_code, "A-1" in got.text) == (status, status == 200), who
        key = {"authorization": f"Bearer {site.keys[who]}"}
        got = site.browser().get(f"/api{place}", headers=key)
        assert (got.status_code, "A-1" in got.text) == (status, status == 200), who
    got = site.browser().get(place)
    assert (got.status_code, got.headers["location"]) == (303, f"/login?next={place}")
    assert site.browser().get(f"/api{place}").status_code == 401


def test_an_output_outside_of_the_roots_of_its_job_is_not_read(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made)
    made.work(moody())
    with made.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET roots = ARRAY['/elsewhere']")
    try:
        got = site.browser("viewer").get(place)
        assert (got.status_code, "A-1" in got.text) == (400, False)
        assert "the job may use" in got.text
    finally:
        with made.ledger.transaction() as connection:
            connection.exec_driver_sql("UPDATE jobs SET roots = NULL")
        assert made.job.roots is None  # what this process opens is held no longer


def test_a_job_that_runs_gives_what_is_done_where_that_is_asked_for(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made)
    browser = site.browser("viewer")
    page = browser.get(f"/jobs/{made.job_id}").text
    assert f"{place}?" not in page, "there is nothing to offer"
    for query in ("", "?partial=true", "?sample=true"):
        refused = browser.get(place + query)
        assert (refused.status_code, "no row of it has an outcome" in refused.text) == (400, True)
    made.run(moody(7), most=2)
    assert f"{place}?" in browser.get(f"/jobs/{made.job_id}").text
    refused = browser.get(place)
    assert (refused.status_code, "20 rows have no output" in refused.text) == (400, True)
    got = browser.get(f"{place}?partial=true")
    assert [json.loads(line)["row_index"] for line in got.text.splitlines()] == list(range(20))
    assert 'filename="moody-1-partial.jsonl"' in got.headers["content-disposition"]
    counts = (got.headers["x-nightshift-rows"], got.headers["x-nightshift-rows-total"])
    assert counts == ("20", "40")
    assert made.work(moody(7)) is JobState.COMPLETED
    got = browser.get(f"{place}?partial=true")
    assert 'filename="moody-1.jsonl"' in got.headers["content-disposition"], "it is whole by now"
    made.retry()
    got = browser.get(f"{place}?partial=true")
    assert got.status_code == 200, got.text
    wanted = [row for row in range(40) if row % 10 != 7]
    assert [json.loads(line)["row_index"] for line in got.text.splitlines()] == wanted


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_sample_has_the_first_rows_and_says_so_in_its_name(
    made: JobSite, site: console_site.Site, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = submit(made)
    made.work(moody())
    monkeypatch.setattr(downloads, "SAMPLE_ROWS", 15)
    parts(made)[2].unlink()  # a sample needs the first parts alone
    got = site.browser("viewer").get(f"{place}?sample=true&format={kind}")
    assert f'filename="moody-1-sample.{kind}"' in got.headers["content-disposition"]
    rows = {
        "jsonl": lambda: len(got.text.splitlines()),
        "csv": lambda: len(list(csv.DictReader(io.StringIO(got.text)))),
        "parquet": lambda: len(pq.read_table(io.BytesIO(got.content))),
    }
    assert rows[kind]() == int(got.headers["x-nightshift-rows"]) == 15


def test_what_is_no_such_file_is_refused_in_a_sentence(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made)
    made.work(moody())
    browser = site.browser("viewer")
    for query in ("format=xlsx", "sample=maybe", "partial=1", "format=%00"):
        refused = browser.get(f"{place}?{query}")
        assert refused.status_code == 400, query
        assert refused.headers["content-type"].startswith("text/html")
        key = {"authorization": f"Bearer {site.keys['viewer']}"}
        said = site.browser().get(f"/api{place}?{query}", headers=key)
        assert (said.status_code, set(said.json())) == (400, {"error"})
    assert browser.get("/jobs/99/results").status_code == 404
    assert browser.post(place).status_code == 405
    head = browser.head(f"{place}?format=csv")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/csv")
    assert head.headers["x-nightshift-rows"] == "40"


@pytest.mark.parametrize("how", ["a source that is gone", "a row without its id"])
def test_messages_of_rows_name_no_path_that_their_tenant_did_not_name(
    made: JobSite, site: console_site.Site, how: str
) -> None:
    """The parts have the texts that the tenant may read; an operator reads whole ones of a dead batch."""
    if how == "a row without its id":
        source = made.folder / "in" / "a.jsonl"
        source.parent.mkdir()
        source.write_text('{"id": "a", "text": "x"}\n{"id": null}\n')
        data = function_spec("moody", source, made.folder / "out")
        made.job_id = intake.submit(made.ledger, parse_spec(data, "test"), load_settings()).job_id
    else:
        submit(made)
        source = made.folder / "in" / "a.parquet"
    with made.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET tenant = 'acme'")
    if how == "a source that is gone":
        source.rename(made.folder / "away")
    made.work(moody())
    place = f"/jobs/{made.job_id}"
    for kind in ("jsonl", "csv"):
        got = site.browser("viewer").get(f"{place}/results?format={kind}").text
        assert f"{source.name} " in got
        assert str(made.folder) not in got
    bare = site.browser("viewer").get(f"{place}/results?format=parquet").content
    errors = pq.read_table(io.BytesIO(bare)).column("error").to_pylist()
    assert str(made.folder) not in str(errors)
    assert str(made.folder) not in site.browser("viewer").get(f"{place}/failed").text
    _, rows = closed_jobs.errors(made.ledger, made.job, kind=None, limit=50)
    whole = [row for row in rows if str(source) in row["message"]]
    assert len(whole) == (0 if how == "a row without its id" else 40)


def test_parts_that_are_gone_are_told_before_the_first_byte(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made)
    made.work(moody())
    for part in parts(made):
        part.unlink()
    browser = site.browser("viewer")
    for kind in ("jsonl", "csv", "parquet"):
        refused = browser.get(f"{place}?format={kind}")
        assert (refused.status_code, "is gone" in refused.text) == (404, True)


@pytest.mark.parametrize(
    "kind", ["jsonl", *(pytest.param(each, marks=pytest.mark.slow) for each in ("csv", "parquet"))]
)
@pytest.mark.parametrize("how", ["gone", "another"])
def test_a_part_that_changes_under_way_breaks_the_transfer(
    made: JobSite, monkeypatch: pytest.MonkeyPatch, kind: download.Kind, how: str
) -> None:
    submit(made)
    made.work(giving("x" * 10_000))
    monkeypatch.setattr(download, "PIECE_BYTES", 1)
    monkeypatch.setattr("nightshift.common.formats.parquet.write.GROUP_ROWS", 10)
    pieces = download.prepare(made.ledger, made.job, kind).pieces()
    taken = [next(pieces)]
    if how == "gone":
        parts(made)[3].unlink()
    else:
        data = bytearray(parts(made)[3].read_bytes())
        data[len(data) // 2] ^= 1
        parts(made)[3].write_bytes(data)
    with pytest.raises(SourceChanged):
        taken.extend(pieces)
    assert not b"".join(taken).endswith(b"PAR1"), "the file has no end"


@pytest.mark.parametrize(
    "kind", ["jsonl", *(pytest.param(each, marks=pytest.mark.slow) for each in ("csv", "parquet"))]
)
def test_a_transfer_that_breaks_never_ends_clean_for_its_client(
    made: JobSite, site: console_site.Site, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = submit(made)
    made.work(giving("x" * 100_000))
    monkeypatch.setattr("nightshift.common.formats.parquet.write.GROUP_ROWS", 10)
    # Several pieces go before the break; what Parquet writes of these rows is small.
    monkeypatch.setattr(download, "PIECE_BYTES", 100 if kind == "parquet" else 20_000)
    parts(made)[3].unlink()
    with served(site) as port, ExitStack() as stack:
        path = f"{place}?format={kind}"
        taken = everything(asked(site, stack, port, path))
        assert taken.startswith(b"HTTP/1.1 200 OK\r\n")
        assert not taken.endswith(b"0\r\n\r\n")
        assert b"PAR1\r\n" not in taken[-20:]
        key = {"authorization": f"Bearer {site.keys['viewer']}"}
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{port}{path}", headers=key, timeout=60)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{port}/api{path}", headers=key, timeout=60)
        limited(site, 1)  # a transfer that broke has left no turn behind
        old = asked(site, stack, port, path, version="1.0")
        assert everything(old).startswith(b"HTTP/1.1 505 ")
        whole = everything_of(site, port, f"{place}?format={kind}&sample=true")
        assert whole.startswith(b"HTTP/1.1 200 OK\r\n")


def everything_of(site: console_site.Site, port: int, path: str) -> bytes:
    with ExitStack() as stack:
        return everything(asked(site, stack, port, path))


def is_free(site: console_site.Site, port: int, place: str) -> bool:
    """Whether the tenant may take results now."""
    key = {"authorization": f"Bearer {site.keys['viewer']}"}
    got = httpx.head(f"http://127.0.0.1:{port}{place}", headers=key, timeout=60)
    assert got.status_code in (200, 429)
    return got.status_code == 200


def test_a_client_that_takes_its_time_holds_its_turn_and_no_thread_and_leaves_both(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made, rows=100, batch=10)
    made.work(giving("x" * 200_000))
    limited(site, 1)
    with served(site) as port, ExitStack() as stack:
        slow = asked(site, stack, port, place)
        assert slow.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: STORE.borrowed_tokens == 0, what="the wait for the client")
        assert not is_free(site, port, place)
        slow.close()
        wait_until(lambda: is_free(site, port, place), what="the end of the turn")


def test_a_client_that_takes_nothing_is_cut_off_and_its_turn_is_free(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made, rows=100, batch=10)
    made.work(giving("x" * 200_000))
    limited(site, 1)
    with served(site, idle_seconds=0.5) as port, ExitStack() as stack:
        silent = asked(site, stack, port, place)
        wait_until(lambda: is_free(site, port, place), what="the end of the turn")
        taken = everything(silent)
        assert taken.startswith(b"HTTP/1.1 200 OK")
        assert len(taken) < 20_000_000
        assert not taken.endswith(b"0\r\n\r\n")


def test_the_results_of_an_archived_job_are_downloaded(
    made: JobSite, site: console_site.Site
) -> None:
    place = submit(made)
    assert made.work(moody()) is JobState.COMPLETED
    age(made)
    assert archive(made) == "archived"
    assert f"{place}?" in site.browser("viewer").get(f"/jobs/{made.job_id}").text
    got = site.browser("viewer").get(place)
    assert (got.status_code, len(got.text.splitlines())) == (200, 40)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: download.Kind
) -> None:
    monkeypatch.setattr("nightshift.common.formats.parquet.write.GROUP_BYTES", 2**20)
    peaks, sizes = [], []
    for rows in (400, 1600):
        made = JobSite(ledger, tmp_path / str(rows), boots=rows)
        made.submit("parquet", rows, 100)
        made.work(giving("wörd " * 2000))
        with peak() as most:
            sizes.append(taken_of(download.prepare(ledger, made.job, kind)))
            peaks.append(most())
    assert sizes[1] > 2 * sizes[0]
    assert peaks[1] < 1.5 * peaks[0], peaks


def taken_of(file: download.Download) -> int:
    return sum(len(piece) for piece in file.pieces())


@contextmanager
def peak() -> Iterator[Callable[[], int]]:
    """The most bytes that Arrow and Python took at once in the block, together."""
    import tracemalloc

    tracemalloc.start()
    try:
        with arrow_memory.counted() as pool:
            yield lambda: pool.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_list_of_parts_is_that_of_one_moment(
    made: JobSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(made)
    made.work(moody(7))
    counted = download.jobs.progress

    def meanwhile(connection: Connection, job_id: int) -> object:
        """The counts, and then rows run again before the parts are listed."""
        found = counted(connection, job_id)
        monkeypatch.setattr(download.jobs, "progress", counted)
        made.retry()
        return found

    monkeypatch.setattr(download.jobs, "progress", meanwhile)
    file = download.prepare(made.ledger, made.job, "jsonl")
    assert (file.rows, file.rows_total) == (40, 40)
    made.run(moody())
    with pytest.raises(SourceChanged):
        list(file.pieces())
