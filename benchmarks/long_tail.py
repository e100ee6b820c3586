"""The end of a job whose rows take very different times, with handovers and without them.

Two fleets run the same job at the same time. Their rows sleep, so that two cores carry both: a row's
seconds are lognormal (sigma 1.5), and equal for equal seeds. One engine has its rows one after the
other, as a function does; the other 8 side by side, as a server does. What counts is the makespan, from
the first claim to the last commit, and the seconds that children had nothing to do in it.
"""

import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from sqlalchemy import text

from benchmarks import report
from benchmarks.control import spec
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line
from benchmarks.tail import DONE
from nightshift.producer.submit.submit import submit

BEFORE = Path(__file__).parent / "before"

SIGMA, MEAN_SECONDS = 1.5, 0.15
ROWS, BATCH_ROWS = 320, 16
SIDE_BY_SIDE = 8
"""Rows that a child has at the server at once; each takes as many times longer as if it were alone."""

LIMIT_SECONDS = 300.0
"""The benchmark fails when a job takes longer."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one job ended, in seconds; `idle` are those of all children together."""

    makespan: float
    idle: float


def main(
    seeds: Annotated[int, typer.Option(help="Jobs for each engine and number of children.")] = 5,
) -> None:
    """Measures the end of jobs with two and with four children."""
    lines = []
    with dozing_server() as url:
        for name, engine in engines(url).items():
            for children in (2, 4):
                with (
                    running(children, engine, before=True) as before,
                    running(children, engine, before=False) as now,
                ):
                    pairs = [
                        side_by_side(before, now, children, engine, seed) for seed in range(seeds)
                    ]
                lines.append(line(name, children, pairs))
    report.keep("long_tail", lines)


def line(name: str, children: int, pairs: list[tuple[Ending, Ending]]) -> Line:
    """One engine and number of children in the table."""
    ratio = report.Median.of([now.makespan / before.makespan for before, now in pairs])
    idle = [report.Median.of([each.idle for each in side]) for side in zip(*pairs, strict=True)]
    return Line(
        f"lengths with a long tail, {children} children",
        f"{name}: with handovers, against without",
        f"{idle[1]} child-seconds idle, without {idle[0]}",
        str(ratio),
        len(pairs),
        report.spread([now.makespan for _, now in pairs]) + " s",
    )


def engines(url: str) -> dict[str, dict[str, Any]]:
    """The engines by what they do with rows."""
    return {
        "rows one after the other": {"backend": "function", "callable": "doze:doze"},
        f"{SIDE_BY_SIDE} rows side by side": {
            "backend": "openai",
            "model": "doze",
            "base_url": url,
            "concurrency": SIDE_BY_SIDE,
        },
    }


@contextmanager
def dozing_server() -> Iterator[str]:
    """A server of the OpenAI API that answers after as many seconds as its prompt says; its base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            time.sleep(float(body["messages"][-1]["content"]))
            message = {"role": "assistant", "content": "done"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._send({"id": "c", "choices": [choice], "usage": usage})

        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "doze"}]})

        def _send(self, body: dict[str, Any]) -> None:
            sent = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def side_by_side(
    before: Fleet, now: Fleet, children: int, engine: dict[str, Any], seed: int
) -> tuple[Ending, Ending]:
    """The same job in both fleets at once."""
    found: dict[str, Ending] = {}

    def run(name: str, here: Fleet) -> None:
        found[name] = measured(here, children, engine, seed)

    threads = [
        threading.Thread(target=run, args=each) for each in (("before", before), ("now", now))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{children} children, seed {seed}: {found}", flush=True)
    return found["before"], found["now"]


@contextmanager
def running(children: int, engine: dict[str, Any], *, before: bool) -> Iterator[Fleet]:
    """A fleet whose children are all ready."""
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-bench-") as scratch,
        fleet(Path(scratch), log_level="warning") as here,
    ):
        here.reaper()
        warm = submitted(here, engine, [0.02] * 64, 1)
        variables = {"PYTHONPATH": str(BEFORE)} if before else {}
        here.worker("--slots", str(children), cores=None, **variables)
        ready = "SELECT count(*) = :wanted FROM workers WHERE state = 'ready'"
        wait(here, ready, children)
        wait(here, DONE, warm)
        yield here


def measured(here: Fleet, children: int, engine: dict[str, Any], seed: int) -> Ending:
    """Runs one job and adds up when each child was at work: from the claim of a batch to its end."""
    chance = random.Random(seed)
    lengths = [chance.lognormvariate(0, SIGMA) for _ in range(ROWS)]
    at_once = SIDE_BY_SIDE if engine["backend"] == "openai" else 1
    scale = at_once * ROWS * MEAN_SECONDS / sum(lengths)
    job = submitted(here, engine, [scale * each for each in lengths], BATCH_ROWS)
    wait(here, DONE, job)
    with here.ledger.transaction() as connection:
        spans = connection.execute(
            text("""
                SELECT worker_id, extract(epoch FROM claimed_at)::float8 AS began,
                       extract(epoch FROM ended_at)::float8 AS ended
                FROM attempts WHERE job_id = :job ORDER BY claimed_at
            """),
            {"job": job},
        ).all()
    start, end = min(each.began for each in spans), max(each.ended for each in spans)
    busy, until = 0.0, dict[str, float]()
    for worker, began, ended in spans:
        busy += max(0.0, ended - max(began, until.get(worker, start)))
        until[worker] = max(ended, until.get(worker, start))
    return Ending(round(end - start, 2), round(children * (end - start) - busy, 2))


def submitted(here: Fleet, engine: dict[str, Any], seconds: list[float], batch_rows: int) -> int:
    """A job whose rows sleep so long."""
    name = f"job-{time.monotonic_ns()}"
    source = here.folder / f"{name}.parquet"
    pq.write_table(pa.table({"id": range(len(seconds)), "seconds": seconds}), source)
    task = {"kind": "function"}
    if engine["backend"] == "openai":
        task = {"kind": "generate", "prompt": "{{ seconds }}"}
    rows = {"rows": batch_rows}
    job = spec(name, source, here.folder / name, engine=engine, task=task, batch=rows)
    return submit(here.ledger, job, here.settings).job_id


def wait(here: Fleet, query: str, wanted: int) -> None:
    """Waits until the query is true."""

    def true() -> bool:
        with here.ledger.transaction() as connection:
            return bool(connection.scalar(text(query), {"wanted": wanted}))

    here.wait(true, LIMIT_SECONDS, 0.2)


if __name__ == "__main__":
    typer.run(main)
