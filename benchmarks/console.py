"""`make bench-console`: the pages of a job with a million batches, and what many open pages ask of Postgres."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import aiohttp
import httpx
import numpy as np
import psycopg
import typer

from benchmarks import report
from benchmarks.ledger import million
from benchmarks.ledger.__main__ import postgres
from benchmarks.report import Line, Median
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve import server
from nightshift.producer.serve.console import app as console
from nightshift.producer.serve.console.session import Session

SECTION = "console"

BATCHES, ROUNDS, LOOKS = 1_000_000, 3, 20
"""The sizes whose figures are kept for the page."""

OPEN = (1, 200)
"""Pages that are open at once."""

ASK_SECONDS = 1.0
"""How often an open page asks for its live part."""

WATCHED_SECONDS = 10.0

SETTLE_SECONDS = 12.0
"""Postgres counts the last transactions of a connection once it was idle for ten seconds: those of 200 browsers that
come in are no part of what is measured."""

WANTED_MS = 100.0
"""What the page of a job with a million batches may take."""

PATHS = ("/", "/jobs/1", "/jobs/1/pictures", "/jobs/1/failed", "/fleet")


def main(
    batches: Annotated[int, typer.Option(help="Batches of the job.")] = BATCHES,
    rounds: Annotated[int, typer.Option(help="How often all is measured.")] = ROUNDS,
) -> None:
    """Measures each page, and the transactions a second with 1 and with 200 browsers on one page."""
    took: dict[str, list[float]] = {path: [] for path in PATHS}
    asked: dict[int, list[float]] = {count: [] for count in OPEN}
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder,
        postgres(Path(folder) / "home") as url,
    ):
        million.store(url, Path(folder), batches)
        million.bring_midway(url, batches)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")  # as autovacuum does within a minute
        with _served(url) as (base, cookie):
            for _ in range(rounds):
                for path in PATHS:
                    took[path].append(_milliseconds(f"{base}{path}", cookie))
                for count in OPEN:
                    asked[count].append(_transactions(url, f"{base}/live/jobs/1", cookie, count))
    lines = [
        *(_page(path, batches, found) for path, found in took.items()),
        *(_open(count, asked) for count in OPEN),
    ]
    (report.keep if (batches, rounds) == (BATCHES, ROUNDS) else report.show)("console", lines)


@contextmanager
def _served(url: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The pages on a loopback port, and the cookie that opens them."""
    session = Session()
    ledger = Ledger(url, connections=server.CONNECTIONS)
    app = serve_app.build(ledger, Settings(), routes=())
    console.add(app, session)
    secret = session.enter(session.ticket)
    assert secret is not None
    try:
        with server.beside(app, 0) as port:
            yield f"http://127.0.0.1:{port}", {session.cookie: secret}
    finally:
        ledger.close()


def _milliseconds(url: str, cookie: dict[str, str]) -> float:
    """The median of some looks at a page, the whole answer."""
    found = []
    with httpx.Client(cookies=cookie) as browser:
        for _ in range(LOOKS):
            began = time.perf_counter()
            answer = browser.get(url)
            found.append(1000 * (time.perf_counter() - began))
            assert answer.status_code == 200, answer.text
    return float(np.median(found))


def _transactions(url: str, live: str, cookie: dict[str, str], count: int) -> float:
    """Transactions a second of the database while so many browsers have the page open."""
    done, shown = threading.Event(), threading.Event()
    watching = threading.Thread(
        target=lambda: asyncio.run(_watch(live, cookie, count, shown.set, done.is_set))
    )
    watching.start()
    try:
        assert shown.wait(60), "not every browser was shown the page"
        time.sleep(SETTLE_SECONDS)
        before, began = _committed(url), time.perf_counter()
        time.sleep(WATCHED_SECONDS)
        return (_committed(url) - before) / (time.perf_counter() - began)
    finally:
        done.set()
        watching.join()


async def _watch(
    live: str,
    cookie: dict[str, str],
    count: int,
    shown: Callable[[], object],
    is_done: Callable[[], bool],
) -> None:
    """Asks for the live part of a page as so many browsers do; says when each of them was shown it."""
    seen: set[int] = set()

    async def follow(session: aiohttp.ClientSession, number: int) -> None:
        known: dict[str, str] = {}
        await asyncio.sleep(ASK_SECONDS * number / count)
        while True:
            async with session.get(live, headers=known) as answer:
                assert answer.status in (200, 304)
                await answer.read()
                known = {"if-none-match": answer.headers["etag"]}
            seen.add(number)
            if len(seen) == count:
                shown()
            await asyncio.sleep(ASK_SECONDS)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(cookies=cookie, connector=connector) as session:
        open_pages = [asyncio.create_task(follow(session, number)) for number in range(count)]
        while not is_done():
            await asyncio.sleep(0.1)
            assert not any(page.done() for page in open_pages), "a page was closed"
        for page in open_pages:
            page.cancel()
        await asyncio.gather(*open_pages, return_exceptions=True)


def _committed(url: str) -> int:
    """Transactions of the database so far."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        found = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database "
            "WHERE datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


def _page(path: str, batches: int, found: list[float]) -> Line:
    median = Median.of(found)
    told = path == "/jobs/1"
    return Line(
        SECTION,
        f"page {path} beside a job of {batches:,} batches",
        f"{median} ms",
        "",
        len(found),
        report.spread(found),
        f"at most {WANTED_MS:.0f} ms" if told else "",
        median.verdict(WANTED_MS, at_least=False) if told else "",
    )


def _open(count: int, asked: dict[int, list[float]]) -> Line:
    found = asked[count]
    ratios = [many / one for many, one in zip(found, asked[OPEN[0]], strict=True)]
    return Line(
        SECTION,
        f"{count} open pages of that job",
        f"{Median.of(found)} transactions/s",
        str(Median.of(ratios)) if count > 1 else "",
        len(found),
        report.spread(found),
    )


if __name__ == "__main__":
    typer.run(main)
